"""Faults at the very moment that random stories seldom hit: what was asked was done, and the answer is lost."""

import asyncio
from dataclasses import replace

import pytest

from pipelined.swarm.rules import OtherModel
from tests.swarm.virtual_swarm import VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual


def on(kind, topic, asker, swarm, act, nth=1):
    """Do this when the nth question (or answer) arrives that one asker asked (or gets) about a topic."""
    asked, left = set(), [nth]

    def hear(passing):
        request = passing.kind == "REQUEST" and passing.source == asker and passing.key[1] == topic
        if request:
            asked.add((passing.key[0], passing.destination))
        response = passing.kind == "RESPONSE" and passing.destination == asker
        if request if kind == "REQUEST" else response and (passing.key[0], passing.source) in asked:
            left[0] -= 1
            if left[0] == 0:
                act(passing)

    swarm.network.intercept(hear)


async def trained(heads, **trainer):
    """One stage, one peer, and a trainer that has seen so many heads."""
    swarm = VirtualSwarm(stages=1, batch=8)
    swarm.peer("p0")
    swarm.trainer("t0", **trainer)
    await swarm.until(lambda: len(swarm.heads) == heads)
    return swarm


@pytest.mark.parametrize("down", [1.05, 2.0])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_transaction_with_a_lost_reply_blocks_no_process(nth, down):
    swarm, lost = VirtualSwarm(stages=1, batch=4), asyncio.Event()
    swarm.peer("p0")

    def die(passing):
        swarm.network.reset("directory", "t0")
        swarm.kill("directory")
        lost.set()

    on("RESPONSE", "directory.transact", "t0", swarm, die, nth)
    swarm.trainer("t0", steps=3)
    await lost.wait()
    await virtual_seconds(down)
    swarm.start_directory()
    await swarm.finish(within=20)
    await swarm.close()


@pytest.mark.parametrize("kind, topic", [("RESPONSE", "prepare"), ("REQUEST", "resume")])
async def test_a_peer_that_missed_that_the_step_goes_on_counts_again(kind, topic):
    """A new leader asks first what is counted, which freezes it; the last peer of a stage must not stay so."""

    swarm = await trained(heads=2, steps=4, slots=2)
    await swarm.until(lambda: len(swarm.peers["p0"].peer.replica.counted) == 2)
    swarm.kill("t0")
    broken = []

    def break_off(passing):
        broken.append(passing)
        swarm.network.reset("t1", "p0")

    on(kind, topic, "t1", swarm, break_off)
    swarm.trainer("t1", steps=4, slots=2)
    await swarm.finish(within=20)
    assert broken
    await swarm.close()


async def test_a_trainer_of_another_model_is_refused():
    swarm = await trained(heads=2, steps=6, slots=2)
    swarm.rules = replace(swarm.rules, model="other")
    swarm.trainer("t1", steps=6)
    refused = swarm.tasks["t1"]
    with pytest.raises(OtherModel, match=f"here: {swarm.rules.digest}, there: {swarm.heads[0].model}"):
        await refused
    assert not swarm.trainers["t1"].trainer.done
    await swarm.close()


async def test_a_trainer_that_stops_while_it_waits_for_work_delays_no_step():
    swarm = await trained(heads=2, steps=6, slots=1)
    swarm.trainer("t1", steps=6, slots=8)
    await swarm.until(lambda: len(swarm.heads) == 4)
    swarm.network.freeze("t1")
    await swarm.until(lambda: swarm.heads[-1].step == 6, within=20)
    await swarm.close()
