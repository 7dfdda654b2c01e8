"""Joiners that come at once spread over the peers of their stage; one that never arrives costs no memory."""

from pipelined.aio.clock import run_virtual
from pipelined.state.stages.donor import MAX_TOTALS
from tests.swarm.virtual_swarm import VirtualSwarm

DONORS, JOINERS = 4, 6


async def joined(befall=lambda swarm: None):
    """Which donors joiners that came at once asked for a manifest: (joiner, donor) for each question that arrived."""
    swarm, asked = VirtualSwarm(stages=1, batch=8), []
    for at in range(DONORS):
        swarm.peer(f"p{at}", 0)
    swarm.trainer("t0", steps=400)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step >= 3)

    def hear(passing):
        if passing.kind == "REQUEST" and "manifest" in passing.key:
            asked.append((passing.source, passing.destination))

    swarm.network.intercept(hear)
    names = [f"j{at}" for at in range(JOINERS)]
    for name in names:
        swarm.peer(name, 0)
    befall(swarm)
    await swarm.until(lambda: all(swarm.peers[name].peer.replica for name in names), within=60)
    await swarm.close()
    return asked


def test_joiners_that_come_at_once_spread_over_the_donors():
    asked = run_virtual(joined())
    load = [sum(donor == f"p{at}" for _, donor in asked) for at in range(DONORS)]
    assert len(asked) == JOINERS and max(load) <= JOINERS // 2 and sum(map(bool, load)) >= 3


def test_a_joining_peer_replaces_an_unreachable_donor():
    (first,) = {donor for joiner, donor in run_virtual(joined()) if joiner == "j0"}
    asked = run_virtual(joined(lambda swarm: swarm.network.cut("j0", first)))
    donors = [donor for joiner, donor in asked if joiner == "j0"]
    assert donors and first not in donors


def test_a_joiner_that_never_arrives_keeps_no_totals_at_any_peer():
    """It is cut from the one peer of its stage, and not from the directory."""

    async def live():
        swarm = VirtualSwarm(stages=2, batch=4)
        for name, stage in {"a": 0, "b": 1}.items():
            swarm.peer(name, stage)
        swarm.trainer("t0", steps=400)
        swarm.peer("j", 1)
        swarm.network.cut("j", "b")
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step > MAX_TOTALS + 3)
        kept = {name: len(swarm.peers[name].peer.replica.donor._applied_steps) for name in "ab"}
        await swarm.close()
        assert kept == {"a": 1, "b": 1}

    run_virtual(live())
