"""From a launched process to its exit code: open the transport, run a program's coroutine on each rank, end everywhere.

The one rule: whatever happens on one rank, every rank ends within seconds and the exit code tells. 0: done, or saved
on request; 1: a failure, named; 2: something the user can put right; 130: interrupted.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TypeVar

from pipelined.actors.agree import AgreedError
from pipelined.actors.messages import describe
from pipelined.aio.events import last_words
from pipelined.errors import UsageError
from pipelined.process import watchdog
from pipelined.process.exit import (
    FAILED,
    INTERRUPTED,
    USAGE,
    Deadline,
    exit_in_order,
    heard,
    leave,
    settled,
    tell,
)
from pipelined.process.launch import Launch
from pipelined.process.memory import frozen_objects, keep_freed
from transports import PeerAborted, PeerLost, Transport, TransportError, new_event_loop, open_local, open_transport

T = TypeVar("T")
Program = Callable[[Transport], Awaitable[int]]
StagesOf = Callable[[int], list[int]]


def run(
    launch: Launch, world_size: int, program: Program, stages_of: StagesOf = lambda rank: [], command: str = ""
) -> int:
    """Run one coroutine a rank to its end and return this process's exit code.

    Args:
        launch: who started this process; without a launcher all ranks live in it.
        world_size: ranks of the job.
        program: called with each rank's open transport; returns an exit code.
        stages_of: the stages a rank holds, to be named when it is lost.
        command: stands before what the user is told to put right.
    """
    keep_freed()
    try:
        with frozen_objects(), Deadline() as deadline, asyncio.Runner(loop_factory=new_event_loop) as runner:
            return settled(runner.run(_Job(launch, world_size, program, stages_of, deadline, command).run()), launch)
    except KeyboardInterrupt:
        return INTERRUPTED
    except UsageError as error:
        return refuse(error, launch, command)


def refuse(error: Exception, launch: Launch, command: str = "") -> int:
    """Tell the user what to put right, on one rank alone; the exit code is 2 everywhere."""
    if launch.speaks:
        tell(complaint(error, command))
    exit_in_order(launch)
    return USAGE


def complaint(error: object, command: str = "") -> str:
    """What the user is told to put right, behind the command that was asked for it."""
    return f"{command}: error: {error}" if command else f"error: {error}"


def parsed(launch: Launch, parse: Callable[[], T]) -> T:
    """Read the flags that all ranks have alike: rank 0 alone prints help or what is wrong, and all end together.

    Raises:
        SystemExit: whatever `parse` ends with.
    """
    with ExitStack() as quiet:
        if launch.rank > 0:
            quiet.enter_context(redirect_stderr(StringIO()))
            quiet.enter_context(redirect_stdout(StringIO()))
        try:
            return parse()
        except SystemExit as end:
            if end.code:
                exit_in_order(launch)
            raise


@dataclass(frozen=True)
class _Job:
    """What `run` was given."""

    launch: Launch
    world_size: int
    program: Program
    stages_of: StagesOf
    deadline: Deadline
    command: str

    async def run(self) -> int:
        """This process's ranks, to the exit code of the worst of them."""
        if self.launch.url.startswith("local:"):
            return max(await asyncio.gather(*map(self._rank, self._open_all())))
        return await self._rank(await self._open())

    def _open_all(self) -> list[Transport]:
        try:
            return open_local(self.launch.url, self.world_size)
        except ValueError as error:
            raise UsageError(str(error)) from error

    async def _open(self) -> Transport:
        try:
            transport = await open_transport(self.launch.url)
        except (ValueError, OSError, TransportError) as error:
            raise UsageError(str(error)) from error
        if transport.world_size != self.world_size:
            await transport.close()
            fact = f"the plan needs another number of ranks (ranks: {transport.world_size}, needed: {self.world_size})"
            raise UsageError(f"{fact}; start {self.world_size} ranks")
        return transport

    def _watched(self) -> AbstractContextManager[None]:
        """Somebody who names the rank that dies, where the launcher does not."""
        if not self.launch.hydra or self.launch.local_rank:
            return nullcontext()
        return watchdog.watching([self._name(rank) for rank in range(self.world_size)])

    async def _rank(self, transport: Transport) -> int:
        try:
            with self._watched():
                code = await self.program(transport)
                await transport.close()
            return code
        except AgreedError as error:
            if transport.rank == 0:
                tell(complaint(error, self.command))
            await transport.close()
            return USAGE
        except UsageError as error:
            return await self._end(transport, USAGE, str(error))
        except asyncio.CancelledError:
            await self._end(transport, INTERRUPTED, f"rank {transport.rank} was interrupted")
            raise
        except Exception as error:
            return await self._fail(transport, error)

    async def _fail(self, transport: Transport, error: BaseException) -> int:
        """Say what happened once, and make it end everywhere."""
        if isinstance(error, PeerAborted):
            return await self._end(transport, *heard(error))
        story = self._story(transport, error)
        tell(f"{story}\n{last_words()}".rstrip("\n"))
        self.deadline.start(FAILED)
        return await leave(transport, FAILED, story.splitlines()[0], lead=True)

    async def _end(self, transport: Transport, code: int, reason: str) -> int:
        """End with the others; where the user can put it right, rank 0 says so, whoever found it."""
        self.deadline.start(code)
        if code == USAGE and transport.rank == 0:
            tell(complaint(reason, self.command))
        return await leave(transport, code, reason, lead=code != FAILED and transport.rank == 0)

    def _story(self, transport: Transport, error: BaseException) -> str:
        """What failed, the first line alone enough for a peer; then where, unless it is a peer's loss."""
        if isinstance(error, PeerLost):
            last = describe(transport.last_key(error.rank))
            lost = f"rank {transport.rank}: lost {self._name(error.rank)}: {error.reason}"
            return f"{lost}; last heard from it: {last}"
        return (str(error) or repr(error)) + "\n" + "".join(traceback.format_exception(error))

    def _name(self, rank: int) -> str:
        stages = ", ".join(map(str, self.stages_of(rank)))
        return f"rank {rank} (stages {stages})" if stages else f"rank {rank}"
