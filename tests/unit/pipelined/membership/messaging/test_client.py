"""A party that replies is reachable, however late; only silence while this process itself was running counts."""

import asyncio

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.membership.messaging.client import (
    SILENCE_LEASES,
    SLICES,
    MemberClient,
    MemberGone,
    MemberUnreachable,
    Probe,
    ReplyLate,
)
from pipelined.membership.messaging.messages import Done, Ping, handle_requests
from pipelined.swarm.records.members import PeerRecord, Phase
from pipelined.swarm.records.view import SwarmView
from tests.virtual_time import virtual_seconds
from transports.rpc.virtual.network import VirtualNetwork, address_of

LEASE_S = 1.0
SILENCE_S = SILENCE_LEASES * LEASE_S


class Two:
    """One that listens, and a member that is asked; a moment is by the clock of the one."""

    def __init__(self):
        self.network = VirtualNetwork()
        self.clock, endpoint = self.network.clock("one"), self.network.endpoint("one")
        handle_requests(self.network.endpoint("other"), Ping, self._answer)
        self.other = PeerRecord("other", address_of("other"), 1, 0, Phase.SERVING, "")
        self.view = SwarmView(None, self.clock)
        self.view.peers["other"] = self.other
        self.probe = Probe(MemberClient(endpoint, self.view), self.clock, LEASE_S)

    async def _answer(self, request, sender):
        return Done()

    async def hears(self, *faults):
        """Whether it is heard, and after how long; faults are moments and what happens then."""
        listening = self.network.run("one", self.probe.reaches(self.other))
        for moment, fault, *names in faults:
            await virtual_seconds(moment - asyncio.get_running_loop().time())
            getattr(self.network, fault)(*names)
        heard, moment = await listening, self.clock.now()
        self.network.kill("one")
        self.network.kill("other")
        return heard, moment


def told(*faults):
    async def listen():
        return await Two().hears(*faults)

    return run_virtual(listen())


def test_a_member_that_replies_is_reachable_at_once():
    assert told() == (True, pytest.approx(0.0, abs=0.1))


def test_a_member_that_is_cut_off_is_unreachable():
    assert told((0, "cut", "one", "other")) == (False, pytest.approx(SILENCE_S))


def test_a_member_that_is_reached_in_time_is_reachable():
    healed = SILENCE_S - 0.1
    assert told((0, "cut", "one", "other"), (healed, "heal", "one", "other")) == (True, pytest.approx(healed, abs=0.1))


def test_time_while_this_process_was_stopped_does_not_count():
    """All its time is up when it goes on, and the answer is still on its way."""
    cut, stopped = (0, "cut", "one", "other"), (0.1, "freeze", "one")
    heard, moment = told(cut, stopped, (9, "heal", "one", "other"), (10, "thaw", "one"))
    assert heard and moment == pytest.approx(10.0, abs=SILENCE_S / SLICES)


@pytest.mark.virtual
async def test_what_is_done_with_a_member_ends_when_it_is_silent_and_not_because_it_lasts():
    two = Two()
    assert await two.probe.while_reachable(two.other, virtual_seconds(100, "done")) == "done"
    two.network.cut("one", "other")
    with pytest.raises(MemberUnreachable):
        await two.probe.while_reachable(two.other, virtual_seconds(100))
    assert two.clock.now() < 100 + 3 * SILENCE_S
    two.network.kill("one")
    two.network.kill("other")


@pytest.mark.virtual
async def test_a_request_without_a_reply_says_whether_the_member_is_late_gone_or_unreachable():
    two = Two()
    client = two.probe.client
    two.network.cut("one", "other")
    with pytest.raises(ReplyLate, match=r"no reply to ping in 0\.5 s"):
        await client.request(two.other, Ping(), 0.5)
    del two.view.peers["other"]
    with pytest.raises(MemberGone, match="other has left"):
        await client.request(two.other, Ping(), 0.5)
    two.view.peers["other"] = two.other
    two.network.heal("one", "other")
    two.network.kill("other")
    with pytest.raises(MemberUnreachable):
        await client.request(two.other, Ping())
    two.network.kill("one")
