"""Moving to another stage never costs the swarm the stage that is left."""

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.swarm.records.steps import members_of
from tests.swarm.virtual_swarm import VirtualSwarm


def trained(dies):
    """Stages of each step's members where "a" is told to move, at the decision of which a peer may die."""

    async def train():
        swarm, told = VirtualSwarm(stages=2, batch=4, rebalance_s=0.01), []
        for name, stage in [("a", 0), ("b", 0), ("c", 1)]:
            swarm.peer(name, stage)

        def balance(loads):
            if told or [len(each) for each in loads] != [2, 1]:
                return {}
            told.append("a")
            if dies:
                swarm.kill(dies)
            return {"a": 1}

        swarm.trainer("t0", steps=8, balance=balance)
        await swarm.finish(within=20)
        await swarm.close()
        assert told
        return swarm.heads[-1].members

    return run_virtual(train())


def test_a_peer_moves_to_its_assigned_stage():
    assert trained(dies="") == [members_of(["b"]), members_of(["a", "c"])]


def test_a_peer_stays_where_the_only_other_died_just_now():
    assert trained(dies="b") == [members_of(["a"]), members_of(["c"])]


async def rejoined(configured):
    """The stage of a peer that was moved from stage 0 to 1, lost its replica there, and joined again.

    Args:
        configured: its stage by its own settings; None: the leader assigns one.
    """
    swarm, moved = VirtualSwarm(stages=2, batch=4, rebalance_s=0.01), []
    for name, stage in [("b", 0), ("c", 1)]:
        swarm.peer(name, stage)

    def balance(loads):
        if moved or [len(each) for each in loads] != [2, 1]:
            return {}
        moved.append("a")
        return {"a": 1}

    swarm.trainer("t0", steps=10**6, balance=balance)
    await swarm.until(lambda: swarm.heads)
    swarm.peer("a", configured)
    stage_of_a = lambda: (replica := swarm.peers["a"].peer.replica) and replica.index  # noqa: E731
    await swarm.until(lambda: stage_of_a() == 0)
    await swarm.until(lambda: stage_of_a() == 1)
    swarm.peer("d", 1)
    swarm.network.cut_off("a")
    await swarm.until(lambda: "a" not in swarm.trainers["t0"].view.peers and swarm.peers["d"].peer.replica)
    swarm.network.heal("a")
    for donor in ("c", "d"):  # it returns, and no donor reaches it
        swarm.network.cut("a", donor)
    await swarm.until(lambda: swarm.peers["a"].peer.replica is None)
    swarm.network.cut_off("a")
    await swarm.until(lambda: "a" not in swarm.trainers["t0"].view.peers)
    for names in [("a",), ("a", "c"), ("a", "d")]:
        swarm.network.heal(*names)
    await swarm.until(lambda: swarm.peers["a"].peer.replica)
    stage = stage_of_a()
    await swarm.close()
    return stage


@pytest.mark.virtual
@pytest.mark.parametrize("configured", [None, 0])
async def test_a_moved_peer_that_lost_its_replica_joins_where_it_is_needed(configured):
    assert await rejoined(configured) == 0
