"""Joiners that come at once spread over the peers of their stage, and pass to the next where one fails."""

from pipelined.clock import run_virtual
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
        if passing.kind == "QUESTION" and "manifest" in passing.key:
            asked.append((passing.source, passing.destination))

    swarm.network.overhear(hear)
    names = [f"j{at}" for at in range(JOINERS)]
    for name in names:
        swarm.peer(name, 0)
    befall(swarm)
    await swarm.until(lambda: all(swarm.peers[name].peer.holding for name in names), within=60)
    await swarm.close()
    return asked


def test_joiners_that_come_at_once_spread_over_the_donors():
    asked = run_virtual(joined())
    load = [sum(donor == f"p{at}" for _, donor in asked) for at in range(DONORS)]
    assert len(asked) == JOINERS and max(load) <= JOINERS // 2 and sum(map(bool, load)) >= 3


def test_a_joiner_whose_donor_is_cut_off_from_it_takes_the_next():
    (first,) = {donor for joiner, donor in run_virtual(joined()) if joiner == "j0"}
    asked = run_virtual(joined(lambda swarm: swarm.network.cut("j0", first)))
    donors = [donor for joiner, donor in asked if joiner == "j0"]
    assert donors and first not in donors
