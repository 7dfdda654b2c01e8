"""Two live processes of one name: the one that came first stays, and the other ends with the reason."""

import re
import signal
import subprocess

import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from tests.swarm.exact import ExactStage, data
from tests.swarm.test_local_swarm import SIZES, SWARM, read_until
from tests.swarm.virtual_swarm import SECONDS, VirtualSwarm

pytestmark = pytest.mark.virtual


def twin(swarm, kind, host, name):
    """Start a process on a machine of its own under a name that another one has; returns it and its task."""
    local = LocalMember(name, *swarm.client(host))
    if kind == "peer":
        build = lambda index: ExactStage(index, swarm.rules.stages)  # noqa: E731
        config = PeerSetup(0, threads=False)
        process = PeerProcess(local, build, swarm.rules, TimedExecutor(SECONDS, local.clock), config)
    else:
        process = TrainerProcess(local, data, swarm.rules)
    swarm.start(host, process.run())
    return process, swarm.tasks[host]


@pytest.mark.parametrize("kind, name", [("peer", "p0"), ("trainer", "t0")])
async def test_a_newcomer_with_the_name_of_a_live_process_ends_and_training_goes_on(kind, name):
    swarm = VirtualSwarm(stages=1)
    swarm.peer("p0", 0)
    swarm.trainer("t0", steps=4000)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 3)
    lives = swarm.trainers["t0"].view.peers["p0"], swarm.trainers["t0"].view.trainers["t0"]
    _, task = twin(swarm, kind, "elsewhere", name)
    del swarm.tasks["elsewhere"]  # it may fail
    await swarm.until(task.done, within=5.0)
    with pytest.raises(UsageError, match=f"the name {name} .at virtual://{name}.*--name"):
        await task
    view = swarm.trainers["t0"].view
    assert (view.peers["p0"], view.trainers["t0"]) == lives, "the older process was disturbed"
    assert swarm.heads[-1].step > 13
    await swarm.close()


async def test_a_process_that_is_started_elsewhere_under_the_name_of_a_dead_one_waits_for_its_lease():
    swarm = VirtualSwarm(stages=1)
    swarm.peer("p0", 0)
    swarm.peer("p1", 0)
    swarm.trainer("t0", steps=4000)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 3)
    swarm.kill("p0")
    _, task = twin(swarm, "peer", "elsewhere", "p0")
    taken_part = lambda: swarm.trainers["t0"].view.peers.get("p0")  # noqa: E731
    await swarm.until(lambda: taken_part() and taken_part().address == "virtual://elsewhere", within=2.5)
    assert not task.done()
    await swarm.close()


async def test_a_draining_peer_that_waits_for_its_name_ends_at_once():
    """It went on waiting for the lease of the former process, or ended with the error that the name is taken."""

    swarm = VirtualSwarm(stages=1)
    swarm.peer("p0", 0)
    swarm.trainer("t0", steps=4000)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 3)
    process, task = twin(swarm, "peer", "elsewhere", "p0")
    await swarm.until(lambda: swarm.heads[-1].step == 6)
    process.peer.leave()
    await swarm.until(task.done, within=0.1)
    assert task.exception() is None
    await swarm.close()


@pytest.mark.in_turns(4)
def test_of_two_commands_with_one_name_the_later_ends_with_code_2_unless_stopped_before():
    words = [*SWARM, "local", "--peers", "1", *SIZES.split(), "--stages", "1", "--lease", "4"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as swarm:
        try:
            address = read_until(swarm, "coordinator at")[-1].split()[2].rstrip(";")
            read_until(swarm, "step 2:")
            words = [*SWARM, "serve", "--coordinator", address, "--name", "peer0"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            with subprocess.Popen(words, **pipes) as asked, subprocess.Popen(words, **pipes) as other:
                read_until(asked, "peer at")  # it waits for its name now, for two leases
                asked.send_signal(signal.SIGTERM)
                (said, complaint), (_, others_complaint) = asked.communicate(timeout=60), other.communicate(timeout=60)
        finally:
            swarm.send_signal(signal.SIGINT)
    assert (asked.returncode, complaint) == (0, "") and said.splitlines()[-1] == "peer0: left"
    assert other.returncode == 2
    assert re.search(r"another process has the name peer0 \(at tcp://.* another --name\n$", others_complaint)
