"""The directory without a network keeps every clause of directories; a lease lasts until its holder dies."""

import pytest

from benchmarks.swarm.directory import DirectDirectory
from pipelined.aio.clock import VirtualClock
from pipelined.membership.directory import LeaseLost
from tests.conformance.directories import EVERYWHERE, Party

pytestmark = pytest.mark.virtual

OF_NETWORKS = {"what_is_beyond_the_limits_is_refused_with_both_numbers"}


@pytest.mark.parametrize("clause", sorted(EVERYWHERE.keys() - OF_NETWORKS))
async def test_it_is_a_directory(clause):
    clock = VirtualClock()
    party = Party(DirectDirectory(clock), None, clock, 3.0)
    await EVERYWHERE[clause](party, party)


async def test_a_live_member_stays_and_a_dead_one_is_removed_with_its_lease():
    both = ["dies", "lives"]
    clock = VirtualClock()
    directory, leases = DirectDirectory(clock), {}
    for name in ("lives", "dies", "asks none"):
        leases[name] = await directory.grant(60.0)
        await directory.transact({}, {name: b""}, lease=leases[name])
    directory.keep(leases["lives"]), directory.keep(leases["dies"])
    seen = []
    for moment in (59.0, 61.0, 999.0, 1030.0, 1039.0, 1041.0, 1e5):
        await clock.sleep(moment - clock.now())
        if moment == 999.0:
            directory.forsake(leases["dies"])  # it renewed last at 980
        seen.append(sorted((await directory.read()).entries))
    with pytest.raises(LeaseLost):
        await directory.transact({}, {"late": b""}, lease=leases["dies"])
    assert seen == [["asks none", *both], both, both, both, both, ["lives"], ["lives"]]
