"""Running one process of a job: open the transport, run the program's coroutine on each rank, exit with a code.

Whatever happens on one rank, every rank exits within seconds. Exit codes: 0: done, or saved on request; 1: a failure,
which is printed; 2: an error that the user can correct; 130: interrupted.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pipelined.errors import AgreedError, JobFailed, Refused, UsageError, usage_error_of
from pipelined.process import watchdog
from pipelined.process.exit import (
    FAILED,
    INTERRUPTED,
    USAGE,
    Deadline,
    abort_peers,
    hold_exit_code,
    parse_abort,
    print_to_stderr,
)
from pipelined.process.launch import Launch
from pipelined.process.loop_thread import interruptible
from pipelined.process.memory import frozen_objects, keep_freed
from pipelined.process.refusal import error_message, refuse
from pipelined.process.reporting.events import recent_text
from pipelined.programs.addresses import describe
from transports import PeerAborted, PeerLost, Transport, TransportError, new_event_loop, open_local, open_transport

RankProgram = Callable[[Transport], Awaitable[int]]
StagesOf = Callable[[int], list[int]]


def run(
    launch: Launch, world_size: int, program: RankProgram, stages_of: StagesOf = lambda rank: [], command: str = ""
) -> int:
    """Run one coroutine per rank to its end and return the exit code of this process.

    Args:
        launch: the launcher of this process; without a launcher all ranks run in it.
        world_size: ranks of the job.
        program: called with the open transport of each rank; returns an exit code.
        stages_of: the stages that a rank holds, for the error when it is lost.
        command: prefix of error messages for the user.
    """
    try:
        return _run_in_new_loop(launch, world_size, program, stages_of, command)
    except UsageError as error:
        return refuse(error, launch, command, join=False)  # of the opening; those of a rank end in `_rank`


def run_or_raise(
    launch: Launch,
    world_size: int,
    program: Callable[[Transport], Awaitable[object]],
    stages_of: StagesOf = lambda rank: [],
    command: str = "",
) -> None:
    """As `run`, for a function of the library: it raises what ends the job.

    Raises:
        AgreedError: on every rank; nothing is printed.
        JobFailed: any other error, which is printed; its cause is that of a rank of this process. A UsageError, too,
            where the user can correct that.
        KeyboardInterrupt: the job was interrupted.
    """
    agreed_errors, errors = list[AgreedError](), list[BaseException]()

    async def rank(transport: Transport) -> int:
        try:
            await program(transport)
        except AgreedError as error:  # on all ranks, so that each can end in order
            agreed_errors.append(error)
            return USAGE
        except Exception as error:
            errors.append(error)
            raise
        return 0

    try:
        code = _run_in_new_loop(launch, world_size, rank, stages_of, command)
    except UsageError as error:
        errors.append(error)
        code = refuse(error, launch, command, join=False)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if agreed_errors:
        raise agreed_errors[0]
    if code:
        cause = errors[0] if errors else None
        kind = Refused if code == USAGE else JobFailed
        reason = parse_abort(cause)[1] if isinstance(cause, PeerAborted) else str(cause) or repr(cause)
        raise kind(f"the job has ended with exit code {code}, and has printed why: {reason}", code) from cause


def _run_in_new_loop(launch: Launch, world_size: int, program: RankProgram, stages_of: StagesOf, command: str) -> int:
    """As `run`. Raises UsageError: the transport cannot be opened."""
    keep_freed()
    try:
        with frozen_objects(), Deadline() as deadline, asyncio.Runner(loop_factory=new_event_loop) as runner:
            job = _Job(
                launch=launch,
                world_size=world_size,
                program=program,
                stages_of=stages_of,
                deadline=deadline,
                command=command,
            )
            return hold_exit_code(runner.run(interruptible(job.run_ranks())), launch)
    except KeyboardInterrupt:
        return INTERRUPTED


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The arguments of `run`, and the state of the run."""

    launch: Launch
    world_size: int
    program: RankProgram
    stages_of: StagesOf
    deadline: Deadline
    command: str

    async def run_ranks(self) -> int:
        """Run the ranks of this process; returns the worst of their exit codes."""
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
        """A watchdog that names a rank that dies, if the launcher does not."""
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
                print_to_stderr(error_message(error, self.command))
            await transport.close()
            return USAGE
        except UsageError as error:
            return await self._end(transport, USAGE, str(error))
        except KeyboardInterrupt:  # of a user's loop in another thread
            return await self._end(transport, INTERRUPTED, f"rank {transport.rank} was interrupted")
        except asyncio.CancelledError:
            await self._end(transport, INTERRUPTED, f"rank {transport.rank} was interrupted")
            raise
        except Exception as error:
            if refusal := usage_error_of(error, self._name(transport.rank)):
                return await self._end(transport, USAGE, str(refusal))
            return await self._fail(transport, error)

    async def _fail(self, transport: Transport, error: BaseException) -> int:
        """Print the error once, and end all ranks."""
        if isinstance(error, PeerAborted):
            return await self._end(transport, *parse_abort(error))
        text = self._error_text(transport, error)
        print_to_stderr(f"{text}\n{recent_text()}".rstrip("\n"))
        self.deadline.start(FAILED)
        return await abort_peers(transport, FAILED, text.splitlines()[0], kills_job=True)

    async def _end(self, transport: Transport, code: int, reason: str) -> int:
        """End with the other ranks; rank 0 prints an error that the user can correct, whichever rank found it."""
        self.deadline.start(code)
        if code == USAGE and transport.rank == 0:
            print_to_stderr(error_message(reason, self.command))
        return await abort_peers(transport, code, reason, kills_job=code != FAILED and transport.rank == 0)

    def _error_text(self, transport: Transport, error: BaseException) -> str:
        """The error: its first line is enough for peers; then the traceback, unless the error is the loss of a peer."""
        if isinstance(error, PeerLost):
            last_key = describe(transport.last_key(error.rank))
            fact = f"rank {transport.rank}: lost {self._name(error.rank)}: {error.reason}"
            return f"{fact}; last heard from it: {last_key}"
        return (str(error) or repr(error)) + "\n" + "".join(traceback.format_exception(error))

    def _name(self, rank: int) -> str:
        stages = ", ".join(map(str, self.stages_of(rank)))
        return f"rank {rank} (stages {stages})" if stages else f"rank {rank}"
