"""A process's line: its rate and its delay, from requests with a payload to another process. No torch.

    seconds of a request = 2 x delay + bytes / rate

The reply is empty, so the rate is that of the way there. A process that serves this topic takes at most `MAX_BYTES` at
a time, and keeps nothing.
"""

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import with_timeout
from pipelined.measurement.fit import Sample, fit
from transports import TransportError
from transports.rpc import Endpoint, Request, Response

TOPIC = "line"
SIZES = (1 << 10, 1 << 16, 1 << 18, 1 << 20)
"""Bytes of the payloads, the smallest first."""
MAX_BYTES = SIZES[-1]
MAX_WAITING = 2
REPEATS = 3
MAX_RATE = 1e11 / 8
"""Bytes a second, 100 gbit: the times of a faster line do not show its rate."""
ENOUGH_S = 2.0
"""Seconds after which no further payload is sent."""
PATIENCE_S = 10.0
"""Seconds after which the measurement ends, also without a reply."""


@dataclass(frozen=True)
class Line:
    """A measured line.

    Args:
        rate: bytes a second.
        delay: seconds of an empty message, one way.
    """

    rate: float
    delay: float

    @classmethod
    def best_of(cls, lines: Sequence["Line"]) -> "Line":
        """A process's line, from those to several peers: the fastest, as the lines of peers may be slower."""
        return cls(max(line.rate for line in lines), statistics.median(line.delay for line in lines))


def serve_line(endpoint: Endpoint) -> None:
    """Reply to processes that measure their lines."""
    endpoint.handle(TOPIC, _reply, MAX_BYTES, MAX_WAITING)


async def measure_line(endpoint: Endpoint, address: str, clock: Clock) -> Line | None:
    """The line to the process at an address; None: it does not reply, or does not serve this topic.

    Cost: at most REPEATS x the sum of SIZES in bytes (4 MiB); two seconds, or longer if one request takes longer, and
        at most PATIENCE_S.
    """
    seconds = dict[int, list[float]]()
    with suppress(TimeoutError, TransportError):
        await with_timeout(clock, PATIENCE_S, _time(endpoint, address, clock, seconds))
    sizes = [size for size in SIZES if seconds.get(size)]
    if len(sizes) < 2:
        return None
    fixed_s, byte_s = fit([Sample((1.0, float(size)), tuple(seconds[size])) for size in sizes]).values
    return Line(min(MAX_RATE, 1 / byte_s) if byte_s else sizes[-1] / min(seconds[sizes[-1]]), fixed_s / 2)


async def _time(endpoint: Endpoint, address: str, clock: Clock, seconds: dict[int, list[float]]) -> None:
    """Add the seconds of each request, by its bytes."""
    await endpoint.request(address, TOPIC)  # it connects
    first_start = clock.now()
    for size in SIZES:
        payload = np.ones(size, np.uint8)
        for _ in range(REPEATS):
            if len(seconds) > 1 and clock.now() - first_start > ENOUGH_S:
                return
            start = clock.now()
            await endpoint.request(address, TOPIC, payload)
            seconds.setdefault(size, []).append(clock.now() - start)


async def _reply(request: Request) -> Response:
    return Response()
