"""A newcomer goes where it is needed most, by who is there and what it has on disk."""

import asyncio
import math
from collections import Counter

import pytest

from pipelined.clock import VirtualClock, run_virtual
from pipelined.swarm.bell import Bell
from pipelined.swarm.choosing import Choosing, stage_for
from pipelined.swarm.membership import Roster
from pipelined.swarm.records import Peer, Phase

SERVING, JOINING, LEAVING = Phase.SERVING, Phase.JOINING, Phase.LEAVING


def seen(*peers):
    roster = Roster(None, None)
    roster.peers = {
        f"p{at}": Peer(f"p{at}", f"virtual://p{at}", at + 1, stage, phase, "m")
        for at, (stage, phase) in enumerate(peers)
    }
    return roster


@pytest.mark.parametrize(
    "peers, saved, stage",
    [
        ([], [], 0),
        ([(0, SERVING)], [], 1),
        ([(0, SERVING), (1, JOINING)], [], 2),
        ([(0, SERVING), (1, SERVING), (2, SERVING), (2, JOINING), (0, JOINING)], [], 1),
        ([(0, SERVING), (1, SERVING), (2, LEAVING)], [], 2),  # who leaves does not stay
        ([(0, SERVING)], [2], 2),  # its state lies here, and nobody has it
        ([(0, SERVING), (2, SERVING)], [2], 1),  # somebody has it
        ([(0, SERVING), (2, JOINING)], [1, 2], 1),  # who joins has none yet
        ([(0, SERVING), (7, SERVING)], [], 1),  # of another model
    ],
)
def test_it_takes_what_is_lost_and_saved_here_or_else_where_the_fewest_are(peers, saved, stage):
    assert stage_for("new", seen(*peers), 3, saved) == stage


def test_where_it_was_itself_does_not_count():
    assert stage_for("p0", seen((0, SERVING), (1, SERVING)), 2, []) == 0


WAY_S = 1e-3


class Claims:
    """A directory's claim and a roster of it, both a way away, for many who choose at once."""

    def __init__(self, stages):
        self.placing_revision, self.asked, self.there = 0, 0, Counter(dict.fromkeys(range(stages), 0))
        self._clock, self._news, self._revision = VirtualClock(), Bell(), 0

    async def wait_for(self, holds):
        while not holds():
            await self._news.wait()

    def emptiest(self):
        return min(self.there, key=self.there.get)

    async def claim(self, index, seen):
        self.asked += 1
        await self._clock.sleep(WAY_S)
        first = self._revision == seen
        self._revision += first
        await self._clock.sleep(WAY_S)
        if first:
            self.placing_revision, self.there[index] = self._revision, self.there[index] + 1
            self._news.ring()
        return first


@pytest.mark.parametrize("peers", [1, 2, 8, 64, 256])
def test_many_who_choose_at_once_ask_a_few_times_each_and_lose_little_time(peers):
    async def choose():
        claims = Claims(4)
        choosing = [Choosing(f"p{at}", claims, VirtualClock()) for at in range(peers)]
        await asyncio.gather(*(each.choose(claims.emptiest, claims.claim) for each in choosing))
        assert max(claims.there.values()) - min(claims.there.values()) <= 1, "they chose knowing nothing of each other"
        assert claims.asked <= peers * (1 + 2 * math.log2(peers))
        assert VirtualClock().now() <= 2 * 2 * WAY_S * peers, "twice what one after another would take"
        return claims.asked

    assert run_virtual(choose()) == run_virtual(choose()), "what is drawn is not repeatable"
