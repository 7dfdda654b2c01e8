"""A peer repeats its announcement when a trainer asks for that, once a second at most."""

import math

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.swarm.peer.lifecycle import MIN_ANNOUNCE_INTERVAL_S, Presence
from pipelined.swarm.records.members import PeerRecord, Phase


class Place:
    """A lease's place in the directory that remembers what was put."""

    incarnation = 7

    def __init__(self):
        self.put_there = []

    async def put(self, record):
        self.put_there.append(record)


@pytest.mark.virtual
async def test_an_announcement_is_repeated_on_request_after_a_second():
    clock, place, calls = VirtualClock(), Place(), []
    presence = Presence("p0", "virtual://p0", "m", clock, lambda: calls.append(clock.now()), saver=None)
    await presence.announce(place, Phase.SERVING, 2)
    await clock.sleep(MIN_ANNOUNCE_INTERVAL_S / 4)
    assert presence.due_s == math.inf
    for _ in range(3):
        presence.request()
    assert presence.due_s == 0.75 * MIN_ANNOUNCE_INTERVAL_S and calls == [MIN_ANNOUNCE_INTERVAL_S / 4] * 3
    await clock.sleep(MIN_ANNOUNCE_INTERVAL_S)
    assert presence.due_s < 0
    await presence.announce(place, Phase.DRAINING, 2)
    assert presence.due_s == math.inf and presence.phase == Phase.DRAINING
    assert place.put_there == [
        PeerRecord("p0", "virtual://p0", 7, 2, phase, "m") for phase in (Phase.SERVING, Phase.DRAINING)
    ]
