"""Computations, and the thread of a device, which takes the next one without waiting for the event loop.

One callback on the loop reports all computations that have ended since the last one. A computation with
`report_at_once`, a failed one, and the last one of the queue schedule that callback; any other end waits for the next.

The way of an instruction's end: `WorkThread._next` in the thread; on the loop `WorkThread.report_ended`,
`TorchExecutor._report`, `Follower.finish_first` and `InstructionWork.finish`.
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
    """One computation on its way through an executor.

    Args:
        op, report_at_once: see `Executor.run`.
        function: does the work; it is dropped at its end, with the tensors that it holds.
    """

    op: str
    function: Callable[[], Any]
    report_at_once: bool = True
    start: float = 0.0
    end: float = 0.0
    value: Any = None
    error: BaseException | None = None

    def reported(self) -> None:
        """Go on, on the loop, which has learned of the end."""

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
    """A thread that does computations in the order in which they are put; its event loop does other things.

    Args:
        compute: does the work of a computation, in the thread; must not raise.
        report: called on the loop with each ended computation, in order.
    """

    def __init__(self, name: str, compute: Callable[[DeviceWork], None], report: Callable[[DeviceWork], None]):
        self._compute = compute
        self._report = report
        self._lock = threading.Lock()
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting, self._ended = deque[DeviceWork](), deque[DeviceWork]()
        self._name, self._working, self._reported, self._closed = name, False, False, False
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, work: DeviceWork) -> None:
        """Queue a computation; its end is reported to the running loop.

        Raises:
            RuntimeError: the thread is closed, or the interpreter ends; nothing is queued.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop is not self._loop:  # a report to a loop that has ended is lost
                self._loop, self._reported = loop, False
            if self._closed:
                raise RuntimeError(f"{self._name} is closed (new work: {work.op}); open another executor")
            if not self._working:
                # before the queue changes, as it refuses when the interpreter ends
                self.pool.submit(self._compute_until_empty)
            self._waiting.append(work)
            self._working = True

    def close(self) -> None:
        """Refuse further computations; those that were put before are done, and are not waited for."""
        with self._lock:
            self._closed = True
        self.pool.shutdown(wait=False)

    def withdraw(self, work: DeviceWork) -> bool:
        """Take a computation out of the queue; False if its work has begun. Ended computations are reported."""
        with self._lock:
            if waits := work in self._waiting:
                self._waiting.remove(work)
        self.report_ended()  # an earlier end may count on that of this computation to be reported
        return waits

    def report_ended(self) -> None:
        """Report the computations that have ended, on the loop."""
        with self._lock:
            ended, self._ended, self._reported = self._ended, deque[DeviceWork](), False
        for work in ended:
            self._report(work)

    def _compute_until_empty(self) -> None:
        """Compute until nothing waits; the thread keeps no computation of which the loop may learn the end."""
        work, _ = self._next(None)
        while work is not None:
            self._compute(work)
            work, report = self._next(work)
            if report and self._loop is not None:
                with suppress(RuntimeError):  # the loop has ended, and the computation was given up
                    self._loop.call_soon_threadsafe(self.report_ended)

    def _next(self, ended: DeviceWork | None) -> tuple[DeviceWork | None, bool]:
        """Take the next computation, and say whether it is time to report the one that has ended."""
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            self._working = following is not None
            report = False
            if ended is not None:
                self._ended.append(ended)
                awaited = ended.report_at_once or ended.error is not None or not self._waiting
                report = awaited and not self._reported
                self._reported = self._reported or report
        return following, report
