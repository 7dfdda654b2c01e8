"""What a trainer does after each rejection of a pass."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.membership.bans import AnnouncedMember
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.reasons import Next, Reason
from pipelined.membership.view import RETRY_S
from pipelined.swarm.records.members import PeerRecord, Phase
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.trainer.peer_pool import MicrobatchNotFinite, PeerPool, StepPassed
from transports.rpc import Rejected

pytestmark = pytest.mark.virtual

MEMBER = AnnouncedMember("virtual://p0", 1)


class Rejecting:
    """A trainer's pool of which a peer rejects a request several times."""

    def __init__(self):
        self.clock, self.banned = VirtualClock(), []
        local, rules = LocalMember("t0", None, None, self.clock), Rules("m", stages=1, batch=1, samples=1)
        self.pool = PeerPool(local, SwarmView(None, self.clock), None, rules)
        self.pool._ban = lambda peer, party, why: self.banned.append(why)

    async def rejected(self, reason, times=1):
        """Bans, and seconds waited."""
        tried = set()
        for _ in range(times):
            await self.pool._on_refusal(None, MEMBER, Rejected(reason), tried)
        return len(self.banned), self.clock.now()


@pytest.mark.parametrize("reason", [each for each in Reason if each.next is Next.RETRY])
async def test_it_sends_again_after_a_pause(reason):
    assert await Rejecting().rejected(reason, times=2) == (0, 2 * RETRY_S)


@pytest.mark.parametrize("reason", [each for each in Reason if each.next is Next.OTHERS])
async def test_it_tries_others_at_once_and_the_same_peer_after_a_pause(reason):
    assert await Rejecting().rejected(reason) == (0, 0.0)
    assert await Rejecting().rejected(reason, times=3) == (0, 2 * RETRY_S)


ANY_OTHER = [each for each in Reason if each.next in (Next.ELSEWHERE, Next.ROUND, Next.STOP)]


@pytest.mark.parametrize("reason", [*ANY_OTHER, "a word of a later version"])
async def test_it_bans_the_peer(reason):
    assert await Rejecting().rejected(reason) == (1, 0.0)


@pytest.mark.parametrize("reason", [each for each in Reason if each.next is Next.DROP])
async def test_it_drops_work_that_has_no_use(reason):
    with pytest.raises(MicrobatchNotFinite if reason is Reason.NOT_FINITE else StepPassed):
        await Rejecting().rejected(reason)


MOVED = [Reason.WRONG_INCARNATION, Reason.NO_STAGE, Reason.BEHIND, Reason.OTHER_LINEAGE, Reason.LEFT]


@pytest.mark.parametrize("reason", MOVED)
async def test_a_peer_that_moved_before_this_trainer_could_know_is_not_banned(reason):
    """A rollback, or a peer that joins again: the directory's change is still on its way to the trainer."""
    assert await Rejecting().rejected(reason) == (0, 0.0)


async def test_a_peer_that_left_while_the_trainer_was_no_member_is_not_used_again():
    pool = Rejecting().pool
    view = pool._view
    for names in (["stays", "leaves"], ["stays"]):
        for name in ("stays", "leaves"):
            listed = PeerRecord(name, f"virtual://{name}", 1, 0, Phase.SERVING, "m") if name in names else None
            view.census.set_record(name, listed)
        running = asyncio.ensure_future(pool.run())  # under one lease after another
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert {party.address for party in pool._router.peers(0)} == {f"virtual://{name}" for name in names}
