"""Moving to another stage never costs the swarm the stage that is left."""

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
