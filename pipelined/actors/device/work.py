"""Pieces of work, and the thread of a device, which takes the next piece without waiting for the event loop.

The loop learns of ended pieces by one callback for all that have ended by then. An end that no rank waits for is not
reported at once, unless the piece failed: while another piece is computed and a third waits, the device lacks nothing.

The way of an instruction's end: `WorkThread._next` in the thread; on the loop `WorkThread.report_ended`,
`TorchExecutor._report_end`, `Follower._on_piece_ended` and `TrainWorker._ended`.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False, slots=True)
class DeviceWork:
    """One piece of work on its way through an executor.

    Args:
        op, work, prompt: see `Executor.run`; the work is dropped at its end, with the tensors that it holds.
        then: called on the loop when it has learned of the end.
    """

    op: str
    work: Callable[[], Any]
    prompt: bool = True
    then: Callable[[], None] = lambda: None
    start: float = 0.0
    end: float = 0.0
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """The result of the work, or its error raised; once, as neither is kept: they hold the work's tensors."""
        value, error, self.value, self.error = self.value, self.error, None, None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # else it and this frame refer to each other


class WorkThread:
    """A thread that does pieces of work in the order in which they are put; its event loop does other things.

    Args:
        compute: does the work of a piece, in the thread; must not raise.
        on_ended: called on the loop with each ended piece, in order.
    """

    def __init__(self, name: str, compute: Callable[[DeviceWork], None], on_ended: Callable[[DeviceWork], None]):
        self._compute, self._on_ended, self._lock = compute, on_ended, threading.Lock()
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting, self._ended = deque[DeviceWork](), deque[DeviceWork]()
        self._name, self._working, self._reported, self._closed = name, False, False, False
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, piece: DeviceWork) -> None:
        """Queue a piece; its end is reported to the running loop.

        Raises:
            RuntimeError: the thread is closed, or the interpreter ends; nothing is queued.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop is not self._loop:  # a report to a loop that has ended is lost
                self._loop, self._reported = loop, False
            if self._closed:
                raise RuntimeError(f"{self._name} is closed and takes no work (op: {piece.op}); open another executor")
            if not self._working:
                self.pool.submit(self._work)  # before the queue changes, as it refuses when the interpreter ends
            self._waiting.append(piece)
            self._working = True

    def close(self) -> None:
        """Refuse further pieces; those that were put before are done, and are not waited for."""
        with self._lock:
            self._closed = True
        self.pool.shutdown(wait=False)

    def withdraw(self, piece: DeviceWork) -> bool:
        """Take a piece out of the queue; False if its work has begun. Ended pieces are reported."""
        with self._lock:
            if waits := piece in self._waiting:
                self._waiting.remove(piece)
        self.report_ended()  # an earlier end may count on that of this piece to be reported
        return waits

    def report_ended(self) -> None:
        """Report the pieces that have ended, on the loop."""
        with self._lock:
            ended, self._ended, self._reported = self._ended, deque[DeviceWork](), False
        for piece in ended:
            self._on_ended(piece)

    def _work(self) -> None:
        piece = None
        while (piece := self._next(piece)) is not None:
            self._compute(piece)

    def _next(self, ended: DeviceWork | None) -> DeviceWork | None:
        """Take the next piece; report the one that has ended, if it is time."""
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            self._working, report = following is not None, False
            if ended is not None:
                self._ended.append(ended)
                awaited = ended.prompt or ended.error is not None or not self._waiting
                report = awaited and not self._reported
                self._reported = self._reported or report
        if report and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the piece was given up
                self._loop.call_soon_threadsafe(self.report_ended)
        return following
