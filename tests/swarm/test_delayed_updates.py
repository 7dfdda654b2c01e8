"""With delayed updates a step takes as long as its computing or as its sum, whichever is longer, and not as both."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from pipelined.clock import run_virtual
from pipelined.swarm.membership import Roster
from pipelined.swarm.rules import Rules
from pipelined.swarm.virtual_parties import VirtualParties
from tests.swarm.exact import WIDTH, ExactStage, Reference, data
from transports.endpoints.virtual import VirtualNetwork

BATCH, PEERS, STEPS = 8, 2, 8
SUM_BYTES = 400_000
ROUND_TRIPS_S = 0.05
"""What a step's questions and its decision take at most, at 2 ms there and back."""


class HeavyStage(ExactStage):
    """Has next to nothing to compute with, and much to sum."""

    def __init__(self, index, stages):
        super().__init__(index, stages)
        self.sums = np.zeros(SUM_BYTES // 8)

    def backward(self, microbatch, inputs, given, count):
        whole, self.sums = self.sums, self.sums[:WIDTH]
        passed = super().backward(microbatch, inputs, given, count)
        self.sums = whole
        return passed

    def apply(self, step, total, scale):
        super().apply(step, total[:WIDTH], scale)


class Swarm:
    """One stage at two peers; each computes for so long a step, and each brings the other half a sum, twice."""

    def __init__(self, compute_s, sum_s, delayed):
        network = VirtualNetwork(delay=1e-3, rate=SUM_BYTES / sum_s)
        rules = Rules("heavy", stages=1, batch=BATCH, samples=BATCH, rebalance_s=0.0, delayed=delayed)
        self.parties, self.decided = VirtualParties(network, rules), []
        self._seconds = {"backward": compute_s * PEERS / BATCH}

    async def run(self):
        """The weights that peers end with, and the seconds from each step's decision to the next one's."""
        self.parties.start_directory()
        for at in range(PEERS):
            self.parties.start_peer(f"p{at}", lambda index: HeavyStage(index, 1), self._seconds, 0)
        _, directory, clock = self.parties.client("watcher")
        self.parties.start("watcher", self._watch(Roster(directory, clock)))
        self.parties.start_trainer("t0", data, slots=4, steps=STEPS)
        await self.parties.tasks["t0"]
        held = [peer.peer.holding for peer in self.parties.peers.values()]
        weights = [each.stage.state()["0/weights"] for each in held]
        await self.parties.close()
        return weights, [after - before for before, after in pairwise(self.decided)]

    async def _watch(self, roster):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(roster.follow())
            while True:
                step = len(self.decided)
                await roster.wait_for(lambda step=step: roster.head is not None and roster.head.step >= step)
                self.decided.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize("compute_s, sum_s", [(1.0, 1.0), (2.0, 0.5), (0.5, 2.0)])
@pytest.mark.parametrize("delayed", [False, True])
def test_a_sum_hides_behind_the_next_steps_computing_or_that_behind_it(compute_s, sum_s, delayed):
    """Who leads has to know first what peers have counted: from the third step on the next is begun beside it."""
    weights, seconds = run_virtual(Swarm(compute_s, sum_s, delayed).run())
    least = max(compute_s, sum_s) if delayed else compute_s + sum_s
    assert all(least <= each < least + ROUND_TRIPS_S for each in seconds[3:-1])
    expected = Reference(1, BATCH, delayed=delayed).weights(STEPS, 0)
    assert all(np.array_equal(np.asarray(each), expected) for each in weights)
