"""An observer copies the state of every stage, to the bit, and costs the swarm no step."""

import numpy as np
import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import run_virtual
from pipelined.membership.connection import LocalMember
from pipelined.swarm.process.observer import SwarmObserver
from tests.swarm.exact import ExactStage
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual

STEPS = 6


def snapshot(after, kill=""):
    """The snapshot of an observer that comes after so many steps, and the swarm."""

    async def train():
        swarm = VirtualSwarm(stages=2, batch=4)
        for name, stage in [("a", 0), ("b", 1), ("c", 1)]:
            swarm.peer(name, stage)
        swarm.trainer("t0", steps=STEPS)
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step >= after)
        local = LocalMember("visitor", *swarm.client("visitor"))
        build = lambda index: ExactStage(index, 2)  # noqa: E731
        observer = SwarmObserver(local, build, swarm.rules, TimedExecutor({}, local.clock))
        if kill:
            swarm.kill(kill)
        taken = await observer.snapshot()
        await swarm.finish(within=20)
        await swarm.close()
        return taken, swarm

    return run_virtual(train())


@pytest.mark.parametrize("after, kill", [(2, ""), (STEPS, ""), (STEPS, "b")])
def test_every_stage_is_of_one_step_and_as_one_process_has_it(after, kill):
    taken, swarm = snapshot(after, kill)
    (version,) = {saved.version for saved, _ in taken}
    assert after <= version.step <= STEPS and version in [head.version for head in swarm.heads]
    for stage, (saved, state) in enumerate(taken):
        assert (saved.stage, saved.stages) == (stage, 2)
        assert np.array_equal(state[f"{stage}/weights"], swarm.reference.weights(version.step, stage))
    assert [head.step for head in swarm.heads] == list(range(STEPS + 1))


def observing(swarm, **seconds):
    """Start an observer that reads every stage, with a device of these seconds for each op; returns its task."""
    local = LocalMember("observer", *swarm.client("observer"))
    build = lambda index: ExactStage(index, swarm.rules.stages)  # noqa: E731
    observer = SwarmObserver(local, build, swarm.rules, TimedExecutor(seconds, local.clock))
    swarm.start("observer", observer.snapshot())
    return swarm.tasks["observer"]


def listed(swarm):
    """The observers that the directory lists."""
    return dict(swarm.trainers["t0"].view.observers)


async def trained(last, **rules):
    """A swarm of two stages that has just taken step `last`: peers a and c at stage 0, b alone at stage 1."""
    swarm, store = VirtualSwarm(stages=2, batch=4, **rules), MemoryStore()
    for name, stage in [("a", 0), ("c", 0), ("b", 1)]:
        swarm.peer(name, stage, store=store)
    swarm.trainer("t0", steps=4000)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step >= last)
    return swarm


async def test_an_observer_does_not_make_the_swarm_go_back_while_a_stage_is_unreachable():
    swarm = await trained(last=7)  # step 6 was saved
    swarm.network.cut_off("b")
    observer = observing(swarm)
    await virtual_seconds(5.0)  # a rollback would come after two leases of 1 s
    swarm.network.heal("b")
    await observer
    assert [head.step for head in swarm.heads] == list(range(len(swarm.heads)))
    await swarm.close()


async def test_an_observer_does_not_keep_a_spare_peer_from_a_stage_that_lost_all_peers():
    swarm = await trained(last=7, rebalance_s=1e6)
    swarm.kill("b")
    observer = observing(swarm)
    await swarm.until(lambda: swarm.heads[-1].step > 7)
    assert {process.peer.replica.index for process in swarm.peers.values()} == {0, 1}
    await observer
    await swarm.close()


async def test_an_observer_that_loses_its_lease_copies_on_under_a_new_one():
    swarm = await trained(last=3)
    observer = observing(swarm, load=0.5)
    await swarm.until(lambda: listed(swarm))
    first = listed(swarm)
    await virtual_seconds(0.2)  # the first stage is being loaded
    swarm.network.freeze("observer")
    await swarm.until(lambda: not listed(swarm))  # the lease of 1 s has expired
    swarm.network.thaw("observer")
    await swarm.until(lambda: listed(swarm))
    assert listed(swarm) != first
    for stage, (saved, state) in enumerate(await observer):
        assert np.array_equal(state[f"{stage}/weights"], swarm.reference.weights(saved.step, stage))
    assert not listed(swarm)
    await swarm.close()
