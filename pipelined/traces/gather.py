"""Gathering the trace: rank 0 compares clocks with every rank, gathers all events, and writes one file."""

import asyncio
from pathlib import Path

from collectives.objects import gather_objects
from pipelined.actors.agree import agree
from pipelined.errors import UsageError
from pipelined.traces.file import write
from pipelined.traces.tracer import Events, Tracer
from transports import Transport

PINGS = 5
"""Round trips for comparing clocks with a rank; the quickest one counts."""


async def gather_and_write(transport: Transport, tracer: Tracer, path: Path, members: int = 1) -> None:
    """Write one timeline of all ranks.

    Args:
        members: ranks of a worker.
    Raises:
        UsageError: on every rank, if rank 0 cannot write the file.
    """
    by_rank = await gather_objects(transport, "trace", (await _offset(transport, tracer), tracer.events().pack()))

    def write_on_first() -> None:
        if transport.rank == 0:
            offsets, events = zip(*by_rank, strict=True)
            try:
                write(path, [Events.unpack(packed) for packed in events], offsets, members)
            except OSError as error:
                fact = f"cannot write the trace to {path} ({error.strerror})"
                raise UsageError(f"{fact}; make room there, or name another --trace") from error

    await agree(transport, "traced", asyncio.to_thread(write_on_first))


async def _offset(transport: Transport, tracer: Tracer) -> float:
    """Seconds to add to this rank's clock to get rank 0's; the error is at most half the quickest round trip."""
    if transport.rank == 0:
        for peer in range(1, transport.world_size):
            for _ in range(PINGS):
                await transport.receive(peer, ("clock", "ask"))
                await transport.send(peer, ("clock", "answer"), note=tracer.now())
        return 0.0
    round_trips = []
    for _ in range(PINGS):
        sent_at = tracer.now()
        await transport.send(0, ("clock", "ask"))
        first_rank_time = (await transport.receive(0, ("clock", "answer"))).note
        round_trips.append((tracer.now() - sent_at, first_rank_time - (sent_at + tracer.now()) / 2))
    return min(round_trips)[1]
