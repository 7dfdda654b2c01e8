"""The ranks of this process in a thread of their own, while the user's program runs in another.

The user's thread sends calls; every rank of the process executes them in order. The event loop never stops between two
calls, so that a rank notices the loss of a peer while the user's program does something else.
"""

import asyncio
import atexit
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from pipelined.actors.actor import Actor
from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.rank_session import RankSession
from pipelined.errors import AgreedError, JobFailed, UsageError
from pipelined.process.launch import Launch
from pipelined.process.run import run_or_raise
from pipelined.process.uncaught import open_trainers
from transports import PeerAborted, Transport

T = TypeVar("T")
RankWork = Callable[[RankSession], Awaitable[T]]


class _Call(Generic[T]):
    """One call, for all ranks of the process."""

    def __init__(self, name: str, work: RankWork[T], ranks: int):
        self.name, self.work, self.pending_ranks = name, work, ranks
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()  # the ranks make the call even if its caller no longer waits
        self._results: list[T] = []

    async def execute(self, rank: RankSession, is_first: bool) -> None:
        """Execute the call on one rank. The future has the result of the process's first rank, once all are done."""
        try:
            result = await self.work(rank)
        except AgreedError as error:
            return self.fail(error)
        self._results += [result] * is_first
        self.pending_ranks -= 1
        if not self.pending_ranks and not self.future.done():
            self.future.set_result(self._results[0])

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class BackgroundRanks:
    """The open ranks of a job in this process.

    Args:
        launch: the launcher of this process; without one all ranks of the plan run in it.
    Raises:
        UsageError: the ranks cannot be built so.
        JobFailed: one rank failed, and has printed why.
    """

    def __init__(self, launch: Launch, job: ArrangedJob):
        self._launch, self._job = launch, job
        self._ranks = 1 if launch.world_size else job.plan.world_size
        self._inboxes: dict[int, asyncio.Queue[_Call[Any] | BaseException | None]] = {}
        self._unfinished_calls: set[_Call[Any]] = set()
        self._lock = threading.Lock()
        self._end_reason = ""
        self._opening: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="pipelined ranks", daemon=True)
        self._thread.start()
        self._opening.result()
        atexit.register(self._at_exit)
        open_trainers.add(self.close)

    def call(self, name: str, work: RankWork[T]) -> Future[T]:
        """Execute a call on every rank of the process, after the calls before it.

        Args:
            name: of the method, compared between the processes.
        Returns: its result on the first rank, or its error: a UsageError comes on every rank alike, and the job can go
            on; a JobFailed has ended the job.
        Raises:
            JobFailed: the job has ended.
        """
        call = _Call(name, work, self._ranks)
        with self._lock:
            if self._end_reason:
                raise JobFailed(self._end_reason)
            self._unfinished_calls = {call, *(c for c in self._unfinished_calls if not c.future.done())}
            self._put(call)
        return call.future

    def close(self, error: BaseException | None = None) -> None:
        """End the job: in good order once all ranks have called this, or with the error that ended the user's loop."""
        with self._lock:
            if not self._end_reason:
                self._end_reason = "the trainer is closed; make another one"
                self._put(None if error is None else error)
        self._thread.join()
        atexit.unregister(self._at_exit)
        open_trainers.discard(self.close)

    def _at_exit(self) -> None:
        self.close(getattr(sys, "last_value", None))

    def _put(self, item: "_Call[Any] | BaseException | None") -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the event loop has just closed: `_fail` follows, and ends the calls
            for inbox in self._inboxes.values():
                self._loop.call_soon_threadsafe(inbox.put_nowait, item)

    def _run(self) -> None:
        plan = self._job.plan
        try:
            run_or_raise(self._launch, plan.world_size, self._rank, plan.stages_of, "pipelined.Trainer")
        except BaseException as error:
            self._fail(error)
        else:
            self._fail(JobFailed(self._end_reason))

    async def _rank(self, transport: Transport) -> None:
        """One rank: open it, and execute calls until the job is closed."""
        async with RankSession.opened(transport, self._launch, self._job) as rank:
            inbox = self._enter(transport.rank)
            calls = CallComparison(rank.trainer.context.actor)
            while (item := await inbox.get()) is not None:
                if isinstance(item, UsageError | KeyboardInterrupt):  # an AgreedError ends each rank in order
                    raise item
                if isinstance(item, BaseException):
                    reason = f"rank {self._launch.rank} left its training loop: {item!r}"
                    if transport.rank != self._launch.rank:
                        raise PeerAborted(self._launch.rank, reason)  # that rank of this process prints it
                    raise JobFailed(reason) from item
                if self._ranks < transport.world_size:
                    calls.announce(item.name)
                await item.execute(rank, transport.rank == self._launch.rank)

    def _enter(self, rank: int) -> "asyncio.Queue[_Call[Any] | BaseException | None]":
        inbox = self._inboxes[rank] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        if len(self._inboxes) == self._ranks:
            self._opening.set_result(None)
        return inbox

    def _fail(self, error: BaseException) -> None:
        """The job has ended: no call may wait for it."""
        with self._lock:
            reason = str(error) or repr(error)
            begin = "the job has ended"
            self._end_reason = self._end_reason or (reason if reason.startswith(begin) else f"{begin}: {reason}")
            if not self._opening.done():
                self._opening.set_exception(error)
            for call in self._unfinished_calls:
                call.fail(error)


class CallComparison:
    """Compares the calls of all ranks on rank 0, beside the calls themselves.

    Without it a rank that makes a call alone, such as a `save` under `if rank == 0`, waits for the others for ever, and
    they wait for it in their next step.

    Cost: a message to rank 0 from every other rank for each call; nothing waits for it.
    """

    def __init__(self, actor: Actor):
        self._actor, self._number = actor, 0

    def announce(self, name: str) -> None:
        """Tell rank 0 of this rank's next call; rank 0 compares, and ends the job if calls differ."""
        call, self._number = self._number, self._number + 1
        if self._actor.rank:
            self._actor.tell(0, ("call", call), note=name)
        else:
            self._actor.start(self._compare(call, name))

    async def _compare(self, call: int, name: str) -> None:
        for rank in range(1, self._actor.transport.world_size):
            other_name = (await self._actor.receive(rank, ("call", call))).note
            if other_name != name:
                fact = f"the ranks call different methods of the trainer (rank 0: {name}, rank {rank}: {other_name})"
                raise JobFailed(f"{fact}; let every rank call the same ones in the same order, not rank 0 alone")
