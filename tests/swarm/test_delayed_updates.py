"""With delayed updates a step takes as long as its computing or as its sum, whichever is longer, and not as both.

What was begun meanwhile is not done again, whatever becomes of the sum.
"""

import asyncio
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from pipelined.aio.clock import run_virtual
from pipelined.aio.tasks import Notifier
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from tests.swarm.exact import WIDTH, ExactStage, Reference, data
from tests.swarm.story import Story
from tests.swarm.virtual_parties import VirtualParties
from tests.virtual_time import virtual_seconds
from transports.rpc.virtual.network import VirtualNetwork

BATCH, PEERS, STEPS = 8, 2, 8
SUM_BYTES = 400_000
ROUND_TRIPS_S = 0.05
"""What a step's questions and its decision take at most, at 2 ms there and back."""


class HeavyStage(ExactStage):
    """Has next to nothing to compute with, and much to sum."""

    def __init__(self, index, stages):
        super().__init__(index, stages)
        self.sums, self.computed = np.zeros(SUM_BYTES // 8), []

    def backward(self, microbatch, inputs, given, count):
        self.computed.append(microbatch)
        whole, self.sums = self.sums, self.sums[:WIDTH]
        passed = super().backward(microbatch, inputs, given, count)
        self.sums = whole
        return passed

    def apply(self, step, total, scale):
        super().apply(step, total[:WIDTH], scale)


class Swarm:
    """One stage at its peers; all of them compute for so long a step, and bring one another a sum in all."""

    def __init__(self, compute_s, sum_s, delayed, peers=PEERS):
        network = VirtualNetwork(delay=1e-3, rate=SUM_BYTES / sum_s)
        rules = Rules("heavy", stages=1, batch=BATCH, samples=BATCH, rebalance_s=0.0, delayed=delayed)
        self.parties, self.decided, self.stages = VirtualParties(network, rules), [], {}
        self._seconds, self._peers = {"backward": compute_s * peers / BATCH}, peers
        self._news = Notifier()

    async def run(self):
        """The weights that peers end with, and the seconds from each step's decision to the next one's."""
        self.parties.start_directory()
        for at in range(self._peers):
            build = lambda index, at=at: self.stages.setdefault(at, HeavyStage(index, 1))  # noqa: E731
            self.parties.start_peer(f"p{at}", build, self._seconds, 0)
        _, directory, clock = self.parties.client("watcher")
        self.parties.start("watcher", self._watch(SwarmView(directory, clock)))
        self.parties.start_trainer("t0", data, slots=4, steps=STEPS)
        await self.parties.tasks["t0"]
        held = [peer.peer.replica for peer in self.parties.peers.values()]
        weights = [each.stage.state()["0/weights"] for each in held]
        await self.parties.close()
        return weights, [after - before for before, after in pairwise(self.decided)]

    async def lose_one(self, step, after_s):
        """The last peer dies so long after this step was begun."""
        while len(self.decided) <= step:
            await self._news.wait()
        await virtual_seconds(after_s)
        self.parties.kill(f"p{self._peers - 1}")

    async def _watch(self, view):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(view.follow())
            while True:
                step = len(self.decided)
                await view.wait_for(lambda step=step: view.head is not None and view.head.step >= step)
                self.decided.append(asyncio.get_running_loop().time())
                self._news.notify_all()


@pytest.mark.parametrize("compute_s, sum_s", [(1.0, 1.0), (2.0, 0.5), (0.5, 2.0)])
@pytest.mark.parametrize("delayed", [False, True])
def test_a_sum_and_the_next_step_overlap_in_either_order(compute_s, sum_s, delayed):
    """The leader first has to know the peers' counts: from the third step on the next one begins beside it."""
    weights, seconds = run_virtual(Swarm(compute_s, sum_s, delayed).run())
    least = max(compute_s, sum_s) if delayed else compute_s + sum_s
    assert all(least <= each < least + ROUND_TRIPS_S for each in seconds[3:-1])
    expected = Reference(1, BATCH, delayed=delayed).weights(STEPS, 0)
    assert all(np.array_equal(np.asarray(each), expected) for each in weights)


@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.0, 1.4, 1.8])
def test_a_member_lost_while_a_sum_is_under_way_costs_no_work_that_was_begun_ahead(after_s):
    async def live():
        swarm = Swarm(0.5, 2.0, True, peers=3)
        striking = asyncio.ensure_future(swarm.lose_one(4, after_s))
        weights, _ = await swarm.run()
        await striking
        return weights, [swarm.stages[at].computed for at in (0, 1)]

    weights, computed = run_virtual(live())
    expected = Reference(1, BATCH, delayed=True).weights(STEPS, 0)
    assert len(weights) == 2 and all(np.array_equal(np.asarray(each), expected) for each in weights)
    assert any(after.step < before.step for each in computed for before, after in pairwise(each))  # one went back
    assert max(Counter(each for one in computed for each in one).values()) == 1


def test_the_end_of_a_ban_is_not_waited_for_at_one_moment_for_ever():
    """What was left of a ban in this story was less than a timer's resolution, which rang early, again and again."""
    run_virtual(Story(171, delayed=True).run())
