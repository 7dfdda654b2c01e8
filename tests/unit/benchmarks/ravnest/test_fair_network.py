"""On the fair network a message waits for none to another party, on a plain one for all that were sent before."""

import asyncio

import pytest

from benchmarks.ravnest.fair_network import FairNetwork
from pipelined.aio.clock import run_virtual
from transports.rpc import Response
from transports.rpc.virtual.network import VirtualNetwork

DELAY, BYTES = 0.01, 1 << 20


async def arrivals(network):
    """When eight messages to `b` and one to `c` arrive, which were sent at once in this order, a second each."""
    network.set_access_rate("a", float(BYTES))
    ends, arrived = {name: network.endpoint(name) for name in "abc"}, {"b": [], "c": []}
    now = asyncio.get_running_loop().time

    async def note_time(request):
        arrived[request.note].append(now())
        return Response()

    for name in "bc":
        ends[name].handle("bulk", note_time, max_bytes=BYTES, max_waiting=16)
    sends = [ends["a"].request(ends[name].address, "bulk", bytes(BYTES), note=name) for name in "bbbbbbbbc"]
    await asyncio.gather(*sends)
    for end in ends.values():
        await end.close()
    return arrived


@pytest.mark.parametrize("kind, seconds", [(VirtualNetwork, 9), (FairNetwork, 2)])
def test_in_turn_a_message_passes_half_as_fast_as_alone(kind, seconds):
    arrived = run_virtual(_in_loop(kind))
    assert arrived["c"] == [pytest.approx(seconds + 2 * DELAY, abs=0.03)]
    assert max(*arrived["b"], *arrived["c"]) == pytest.approx(9 + 2 * DELAY, abs=0.03)
    assert len(arrived["b"]) == 8 and arrived["b"] == sorted(arrived["b"])


async def _in_loop(kind):
    return await arrivals(kind(delay=DELAY))
