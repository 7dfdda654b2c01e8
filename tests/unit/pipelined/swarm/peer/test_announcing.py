"""A peer says itself again when it is asked to, once a while however many ask."""

import math

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.swarm.peer.announcing import NEWS_S, Announcing
from pipelined.swarm.records import Peer, Phase


class Place:
    """A standing that remembers what was put."""

    incarnation = 7

    def __init__(self):
        self.put_there = []

    async def put(self, record):
        self.put_there.append(record)


@pytest.mark.virtual
async def test_it_is_due_a_while_after_it_was_last_said_and_only_where_somebody_asked():
    clock, place, heard = VirtualClock(), Place(), []
    announcing = Announcing("p0", "virtual://p0", "m", clock, lambda: heard.append(clock.now()))
    await announcing.say(place, Phase.SERVING, 2)
    await clock.sleep(NEWS_S / 4)
    assert announcing.due_s == math.inf
    for _ in range(3):
        announcing.ask()
    assert announcing.due_s == 0.75 * NEWS_S and heard == [NEWS_S / 4] * 3
    await clock.sleep(NEWS_S)
    assert announcing.due_s < 0
    await announcing.say(place, Phase.PARTING, 2)
    assert announcing.due_s == math.inf and announcing.said == Phase.PARTING
    assert place.put_there == [Peer("p0", "virtual://p0", 7, 2, phase, "m") for phase in (Phase.SERVING, Phase.PARTING)]
