"""From a launched process to its exit code: open the transport, run a program's coroutine on each rank, end everywhere.

The one rule: whatever happens on one rank, every rank ends within seconds and the exit code tells. 0: done, or saved
on request; 1: a failure, named; 2: something the user can put right; 130: interrupted.
"""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from pipelined.actor import first_cause
from pipelined.errors import UsageError
from pipelined.exchange import gather, share
from pipelined.launch import Launch
from pipelined.messages import describe
from transports import (
    AuthenticationError,
    PeerAborted,
    PeerLost,
    RendezvousError,
    Transport,
    new_event_loop,
    open_transport,
)

T = TypeVar("T")
Program = Callable[[Transport], Awaitable[int]]
GRACE = 5.0
"""Seconds in which a rank that is ending may still wait for others before it is ended by force."""


def run(launch: Launch, world_size: int, program: Program) -> int:
    """Run one coroutine a rank to its end and return this process's exit code.

    Args:
        launch: who started this process; without a launcher all ranks live in it.
        world_size: ranks of the job.
        program: called with each rank's open transport; returns an exit code.
    """
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_ranks(launch, world_size, program))
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        return refuse(error, launch.rank)


def refuse(error: Exception, rank: int) -> int:
    """Tell the user what to put right, on rank 0 alone; the exit code is 2 everywhere."""
    if rank == 0:
        tell(f"error: {error}")
    return 2


def tell(text: str) -> None:
    """One write to stderr, so that ranks do not cut into each other's lines."""
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()


async def _ranks(launch: Launch, world_size: int, program: Program) -> int:
    if launch.url.startswith("local:"):
        return await _together(world_size, program)
    try:
        transport = await open_transport(launch.url)
    except (ValueError, RendezvousError, AuthenticationError) as error:
        tell(f"error: {error}")
        return 2
    code = 130
    try:
        code = await _rank(transport, program)
        return code
    finally:
        if code not in (0, 2):
            _end_by_force(transport, code)


async def _together(world_size: int, program: Program) -> int:
    """All ranks in this process: the first failure cancels the others."""
    from transports.local import world

    transports = world(world_size)
    codes = await asyncio.gather(*(_rank(transport, program) for transport in transports))
    return max(codes)


async def _rank(transport: Transport, program: Program) -> int:
    try:
        code = await program(transport)
        await transport.close()
        return code
    except UsageError as error:
        await transport.close()
        return refuse(error, transport.rank)
    except asyncio.CancelledError:
        await transport.abort(f"rank {transport.rank} was interrupted")
        raise
    except Exception as error:
        return await _fail(transport, first_cause(error))


async def _fail(transport: Transport, error: BaseException) -> int:
    """Say what happened once, make it end everywhere, and give the exit code."""
    reason = _story(transport, error)
    if not isinstance(error, PeerAborted):
        tell(reason)
    await transport.abort(reason.splitlines()[0])
    return 1


def _story(transport: Transport, error: BaseException) -> str:
    """What failed, first line alone enough for a peer; then where, unless it is a peer's loss."""
    if isinstance(error, PeerLost):
        heard = describe(transport.last_key(error.rank))
        return f"rank {transport.rank}: {error}; last heard from it: {heard}"
    text = str(error) or repr(error)
    if isinstance(error, PeerAborted):
        return text
    return text + "\n" + "".join(traceback.format_exception(error))


def _end_by_force(transport: Transport, code: int) -> None:
    """End this process (under MPI the job) if it has not ended by itself in time: nobody waits for ever."""

    def end() -> NoReturn:
        kill_world = getattr(transport, "kill_world", None)
        if kill_world is not None:
            kill_world(code)
        os._exit(code)

    timer = threading.Timer(GRACE, end)
    timer.daemon = True
    timer.start()


async def together(transport: Transport, what: str, work: Awaitable[T]) -> T:
    """Do something on every rank that may turn out to be the user's to put right, and agree on the outcome.

    Args:
        what: a name for this exchange, the same on every rank.
        work: may raise UsageError on any rank.
    Raises:
        UsageError: on every rank, the error of the lowest rank that had one.
    """
    result, error = None, None
    try:
        result = await work
    except (UsageError, OSError) as caught:
        error = str(caught)
    errors = [e for e in await gather(transport, what, error) if e]
    first = await share(transport, what, errors[0] if errors else None)
    if first is not None:
        raise UsageError(first)
    return result  # type: ignore[return-value]
