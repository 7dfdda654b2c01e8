"""Faults at the very moment that random stories seldom hit: what was asked was done, and the answer is lost."""

import asyncio
from dataclasses import replace

import pytest

from pipelined.clock import run_virtual
from pipelined.swarm.conductor import OtherModel
from tests.swarm.virtual_swarm import VirtualSwarm


def on_question(swarm, topic, asker, act):
    """Do this when the first question of one asker about a topic arrives."""
    asked = []

    def hear(passing):
        if (passing.kind, passing.source) == ("QUESTION", asker) and passing.key[1] == topic and not asked:
            asked.append(passing)
            act(passing)

    swarm.network.overhear(hear)


def on_answer(swarm, topic, asker, act, nth=1):
    """Do this when the nth answer that one asker gets to a topic arrives."""
    numbers, left = set(), [nth]

    def hear(passing):
        if passing.kind == "QUESTION" and passing.key[1] == topic and passing.source == asker:
            numbers.add((passing.key[0], passing.destination))
        if passing.kind == "ANSWER" and passing.destination == asker and (passing.key[0], passing.source) in numbers:
            left[0] -= 1
            if left[0] == 0:
                act(passing)

    swarm.network.overhear(hear)


@pytest.mark.parametrize("down", [1.05, 2.0])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_transaction_whose_answer_is_lost_with_the_directory_leaves_nobody_waiting(nth, down):
    async def train():
        swarm = VirtualSwarm(stages=1, batch=4)
        swarm.peer("p0")
        lost = asyncio.Event()

        def die(passing):
            swarm.network.reset("directory", "t0")
            swarm.kill("directory")
            lost.set()

        on_answer(swarm, "directory.transact", "t0", die, nth)
        swarm.trainer("t0", steps=3)
        await lost.wait()
        await asyncio.sleep(down)
        swarm.start_directory()
        await swarm.finish(within=20)
        await swarm.close()

    run_virtual(train())


@pytest.mark.parametrize("topic", ["prepare", "resume"])
def test_a_peer_that_missed_that_the_step_goes_on_counts_again(topic):
    """A new leader asks first what is counted, which freezes it; the last peer of a stage must not stay so."""

    async def train():
        swarm = VirtualSwarm(stages=1, batch=8)
        swarm.peer("p0")
        swarm.trainer("t0", steps=4, slots=2)
        await swarm.until(lambda: len(swarm.heads) == 2 and len(swarm.peers["p0"].peer.holding.counted) == 2)
        swarm.kill("t0")
        broken = []

        def break_off(passing):
            broken.append(passing)
            swarm.network.reset("t1", "p0")

        hears = on_answer if topic == "prepare" else on_question
        hears(swarm, topic, "t1", break_off)
        swarm.trainer("t1", steps=4, slots=2)
        await swarm.finish(within=20)
        assert broken
        await swarm.close()

    run_virtual(train())


def test_a_trainer_of_another_model_is_refused():
    async def train():
        swarm = VirtualSwarm(stages=1, batch=8)
        swarm.peer("p0")
        swarm.trainer("t0", steps=6, slots=2)
        await swarm.until(lambda: len(swarm.heads) == 2)
        swarm.rules = replace(swarm.rules, model="other")
        swarm.trainer("t1", steps=6)
        refused = swarm.tasks["t1"]
        with pytest.raises(OtherModel, match=f"here: {swarm.rules.digest}, there: {swarm.heads[0].model}"):
            await refused
        assert not swarm.trainers["t1"].trainer.done
        await swarm.close()

    run_virtual(train())


def test_a_trainer_that_stops_for_good_while_it_waits_for_work_holds_nobody_up():
    async def train():
        swarm = VirtualSwarm(stages=1, batch=4)
        swarm.peer("p0")
        swarm.trainer("t0", steps=6, slots=1)
        await swarm.until(lambda: len(swarm.heads) == 2)
        swarm.trainer("t1", steps=6, slots=8)
        await swarm.until(lambda: len(swarm.heads) == 4)
        swarm.network.freeze("t1")
        await swarm.until(lambda: swarm.heads[-1].step == 6, within=20)
        await swarm.close()

    run_virtual(train())
