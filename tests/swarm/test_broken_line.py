"""A trainer whose line to the leader breaks again and again costs time, and nothing is computed twice for it."""

import pytest

from pipelined.clock import run_virtual
from tests.swarm.virtual_swarm import VirtualSwarm

STAGES, BATCH, STEPS = 2, 8, 6


@pytest.mark.parametrize("nth", [3, 5])
def test_what_a_trainer_did_is_told_again_where_the_telling_was_lost(nth):
    """Every third or fifth telling is lost, and what else is on the line."""

    async def train():
        swarm = VirtualSwarm(STAGES, BATCH)
        for name in ("p0", "p1", "p2", "p3"):
            swarm.peer(name)
        swarm.trainer("leader", steps=STEPS)
        await swarm.until(lambda: swarm.trainers["leader"].roster.conductor is not None)
        swarm.trainer("other", steps=STEPS)
        told, backwards = [], []

        def hear(passing):
            if passing.kind == "QUESTION" and passing.key[1] == "backward":
                backwards.append(passing)
            if passing.kind == "QUESTION" and passing.key[1] == "work" and passing.source == "other":
                told.append(passing)
                if len(told) % nth == 0:
                    swarm.network.reset("other", "leader")

        swarm.network.overhear(hear)
        await swarm.finish(within=60)
        assert len(told) > 2 * nth and len(backwards) == STEPS * BATCH * STAGES
        await swarm.close()

    run_virtual(train())
