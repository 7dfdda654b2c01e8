"""Lines on the virtual clock: the rate and the delay that the network has, in bounded time and bytes."""

import asyncio

import numpy as np
import pytest

from pipelined.measurement.timed.line import (
    MAX_BYTES,
    MAX_RATE,
    PATIENCE_S,
    REPEATS,
    SIZES,
    TOPIC,
    Line,
    measure_line,
    serve_line,
)
from tests.virtual_time import virtual_seconds
from transports.rpc import Rejected, Response
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual


async def line_and_bytes(network, serve=serve_line):
    async with network.endpoint("here") as endpoint, network.endpoint("there") as peer:
        serve(peer)
        line = await measure_line(endpoint, address_of("there"), network.clock("here"))
        return line, endpoint.bytes_sent, peer.bytes_sent


@pytest.mark.parametrize(("delay", "rate"), [(30e-3, 25e6), (1e-3, 125e6), (0.2, 1e6)])
async def test_rate_and_delay_are_those_of_the_network(delay, rate):
    line, sent, replied = await line_and_bytes(VirtualNetwork(delay=delay, rate=rate))
    assert line.rate == pytest.approx(rate, rel=0.02)
    assert line.delay == pytest.approx(delay, rel=0.02)
    assert (sent, replied) == (REPEATS * sum(SIZES), 0) if delay < 0.1 else sent < REPEATS * sum(SIZES)


async def test_a_line_that_carries_all_bytes_at_once_has_the_largest_rate():
    line, _, _ = await line_and_bytes(VirtualNetwork(delay=0.5))
    assert line == Line(MAX_RATE, pytest.approx(0.5))


async def test_replies_that_come_faster_to_more_bytes_give_the_rate_of_the_largest_request():
    async def odd(request):
        await virtual_seconds(0.2 if request.blocks[:1] and request.blocks[0].nbytes < SIZES[-1] else 0.1)
        return Response()

    line, _, _ = await line_and_bytes(VirtualNetwork(delay=0.0), lambda peer: peer.handle(TOPIC, odd, MAX_BYTES))
    assert line.rate == pytest.approx(SIZES[-1] / 0.1)


async def test_a_slow_line_is_measured_with_few_bytes():
    """64 KiB take 6.5 s: they are sent once."""
    line, sent, _ = await line_and_bytes(VirtualNetwork(delay=1e-3, rate=1e4))
    assert line.rate == pytest.approx(1e4, rel=0.02)
    assert sent == REPEATS * SIZES[0] + SIZES[1]


async def test_a_process_that_does_not_reply_costs_a_bounded_time():
    async def silent(request):
        await asyncio.Event().wait()

    network = VirtualNetwork()
    began = asyncio.get_running_loop().time()
    line, _, _ = await line_and_bytes(network, lambda peer: peer.handle(TOPIC, silent))
    assert line is None
    assert asyncio.get_running_loop().time() - began == pytest.approx(PATIENCE_S, rel=0.01)


async def test_a_process_of_an_earlier_release_has_no_measured_line():
    assert (await line_and_bytes(VirtualNetwork(), lambda peer: None))[0] is None


async def test_a_larger_payload_is_refused():
    network = VirtualNetwork()
    async with network.endpoint("here") as endpoint, network.endpoint("there") as peer:
        serve_line(peer)
        with pytest.raises(Rejected, match="too large"):
            await endpoint.request(address_of("there"), TOPIC, np.ones(MAX_BYTES + 1, np.uint8))
        assert await endpoint.request(address_of("there"), TOPIC, np.ones(MAX_BYTES, np.uint8)) == Response()


def test_the_fastest_of_several_lines_is_the_own_one():
    assert Line.best_of([Line(10.0, 0.1), Line(50.0, 0.3), Line(20.0, 0.2)]) == Line(50.0, 0.2)
