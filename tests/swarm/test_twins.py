"""Two live processes of one name: the one that came first stays, and the other ends with the reason."""

import pytest

from pipelined.clock import run_virtual
from pipelined.device import TimedDevice
from pipelined.errors import UsageError
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from tests.swarm.exact import ExactStage, data
from tests.swarm.virtual_swarm import SECONDS, VirtualSwarm


def twin(swarm, kind, host, name):
    """Start a process on a machine of its own under a name that another one has; returns its task."""
    endpoint, directory, clock = swarm.client(host)
    common = swarm.rules, endpoint, directory, clock
    if kind == "peer":
        build = lambda index: ExactStage(index, swarm.rules.stages)  # noqa: E731
        process = PeerProcess(name, build, *common, TimedDevice(SECONDS, clock), 0, threads=False)
    else:
        process = TrainerProcess(name, data, *common)
    swarm.start(host, process.run())
    return swarm.tasks[host]


@pytest.mark.parametrize("kind, name", [("peer", "p0"), ("trainer", "t0")])
def test_a_newcomer_with_the_name_of_a_live_process_ends_and_training_goes_on(kind, name):
    async def train():
        swarm = VirtualSwarm(stages=1)
        swarm.peer("p0", 0)
        swarm.trainer("t0", steps=4000)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 3)
        lives = swarm.trainers["t0"].roster.peers["p0"], swarm.trainers["t0"].roster.trainers["t0"]
        task = twin(swarm, kind, "elsewhere", name)
        del swarm.tasks["elsewhere"]  # it may fail
        await swarm.until(task.done, within=5.0)
        with pytest.raises(UsageError, match=f"the name {name} .at virtual://{name}.*--name"):
            await task
        roster = swarm.trainers["t0"].roster
        assert (roster.peers["p0"], roster.trainers["t0"]) == lives, "the older process was disturbed"
        assert swarm.heads[-1].step > 13
        await swarm.close()

    run_virtual(train())


def test_a_process_that_is_started_elsewhere_under_the_name_of_a_dead_one_waits_for_its_lease():
    async def train():
        swarm = VirtualSwarm(stages=1)
        swarm.peer("p0", 0)
        swarm.peer("p1", 0)
        swarm.trainer("t0", steps=4000)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 3)
        swarm.kill("p0")
        task = twin(swarm, "peer", "elsewhere", "p0")
        taken_part = lambda: swarm.trainers["t0"].roster.peers.get("p0")  # noqa: E731
        await swarm.until(lambda: taken_part() and taken_part().address == "virtual://elsewhere", within=2.5)
        assert not task.done()
        await swarm.close()

    run_virtual(train())
