"""An endpoint's emulated line on the virtual clock: known times of frames that come alone, and of several at once."""

import asyncio

import pytest

from tests.virtual_time import virtual_seconds
from transports import WireError
from transports.emulation.options import LinkProfile
from transports.rpc import Unreachable
from transports.rpc.frames import RpcKind
from transports.rpc.tcp.slow_links import AccessLines, SlowSession
from transports.wire.frames import PREAMBLE_BYTES, Header

pytestmark = pytest.mark.virtual
RATE = 1000.0


class Inner:
    """Notes when each frame comes; fails at the key 9."""

    def __init__(self):
        self.came = []

    def end(self, error):
        self.ended_by = error.reason

    def receive(self, kind, header, blocks=()):
        self.came.append((header.key[0], asyncio.get_running_loop().time()))
        if header.key[0] == 9:
            raise WireError("malformed")


def frame(number, nbytes):
    return RpcKind.REQUEST, Header((number,), None, [(None, (nbytes - PREAMBLE_BYTES,))], nbytes - PREAMBLE_BYTES)


@pytest.fixture
def line():
    return AccessLines(LinkProfile(line=RATE))


async def test_frames_of_several_connections_pass_one_line_one_after_another(line):
    """Three of a second each that are complete at 5 s pass at 5, 6 and 7 s; one that comes alone is not late."""
    inner, errors = Inner(), []
    sessions = [SlowSession(inner, line.down, errors.append) for _ in range(3)]
    await virtual_seconds(5)
    for number, session in enumerate(sessions):
        session.receive(*frame(number, 1000))
    await virtual_seconds(15)
    sessions[0].receive(*frame(3, 1000))
    await virtual_seconds(1)
    assert inner.came == [(number, pytest.approx(at)) for number, at in enumerate([5, 6, 7, 20])]


async def test_frames_of_one_connection_keep_their_order_and_none_comes_after_its_end(line):
    inner = Inner()
    session = SlowSession(inner, line.down, print)
    for number, nbytes in enumerate([5000, 1000, 2000]):
        session.receive(*frame(number, nbytes))
    await virtual_seconds(1.5)
    session.end(Unreachable("there", "it closed"))
    await virtual_seconds(5)
    assert [number for number, _ in inner.came] == [0, 1] and inner.ended_by == "it closed"


async def test_a_malformed_frame_is_reported_when_it_has_passed(line):
    errors = []
    session = SlowSession(Inner(), line.down, errors.append)
    session.receive(*frame(9, 1000))
    await virtual_seconds(1)
    assert [str(error) for error in errors] == ["malformed"]


def test_a_profile_without_a_line_has_none():
    for line in (AccessLines(None), AccessLines(LinkProfile(rate=1.0))):
        assert line.up is None and line.down is None
