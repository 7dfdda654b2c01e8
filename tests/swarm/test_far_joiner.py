"""A peer that joins over a slow line fetches its stage's state once, during steps, and then keeps up."""

from collections import Counter

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.swarm.records.steps import name_digest
from tests.swarm.virtual_swarm import VirtualSwarm


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("away, delayed", [(0.1, False), (0.25, True)])
def test_a_far_joiner_fetches_the_state_once_and_is_never_left_behind_again(away, delayed):
    """Steps take 0.3 s without it, so that some are decided in each of its round trips."""

    async def join():
        swarm, asked = VirtualSwarm(stages=1, batch=20, delayed=delayed), Counter()
        taken_part = lambda: [name_digest("far") in stage for head in swarm.heads for stage in head.members]  # noqa: E731

        def hear(passing):
            if passing.source == "far" and passing.kind == "REQUEST":
                asked[passing.key[1]] += 1

        swarm.network.intercept(hear)
        swarm.network.add_delay("far", away)
        for name in ("a", "b"):
            swarm.peer(name)
        swarm.trainer("t0", steps=60)
        await swarm.until(lambda: len(swarm.heads) > 5)
        swarm.peer("far")
        await swarm.until(lambda: any(taken_part()))
        assert sum(not each for each in taken_part()[5:]) <= 25
        begins = len(taken_part())
        await swarm.until(lambda: len(taken_part()) >= begins + 8, within=40.0)
        assert all(taken_part()[begins:]), "it was left behind"
        assert asked["manifest"] == 1 and asked["totals"] <= 6
        await swarm.close()

    run_virtual(join())
