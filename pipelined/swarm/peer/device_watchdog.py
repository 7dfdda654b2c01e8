"""The watchdog of a peer's device: it compares the duration of work with that of earlier work of the same kind.

While the device completes one piece of work after another, it is not late, however many pieces wait. The first piece of
a kind may include compilation: it can be late, because peers wait for it, but it never counts as stalled. Time while
this process is stopped is not counted.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from pipelined.actors.device.executor import Executor
from pipelined.aio.clock import Clock

T = TypeVar("T")
KEPT_DURATIONS = 64
LATE, STUCK = 4.0, 10.0
"""Work is late, or the device is stalled, after this multiple of the longest of the last `KEPT_DURATIONS`."""
UNKNOWN_LEASES = 10.0
"""Lease times after which work of a kind never measured is late, and before which no device counts as stalled."""
CHECKS_PER_LEASE = 4


class DeviceLate(Exception):
    """The device is late; it may still end its work."""


class DeviceStalled(RuntimeError):
    """The device makes no more progress."""


class DeviceWatchdog:
    """An executor with the same `run`, and a check of its progress.

    Args:
        lease_s: seconds of a member's lease; work that took less is never late.
    """

    def __init__(self, executor: Executor, lease_s: float):
        self.clock: Clock = executor.clock
        self._executor, self._lease_s = executor, lease_s
        self._turn = asyncio.Lock()
        self._current_op = ""
        self._open_requests = 0
        self._durations = dict[str, deque[float]]()
        self._unfinished_s = 0.0
        self._scopes = set[asyncio.Timeout]()

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        """See `Executor.run`."""
        self._open_requests += 1
        try:
            async with self._turn:
                self._current_op = op
                try:
                    result, start, end = await self._executor.run(op, work)
                except Exception:  # failed work has ended, too
                    self._unfinished_s = 0.0
                    raise
        finally:
            self._open_requests -= 1
        self._unfinished_s = 0.0
        self._durations.setdefault(op, deque(maxlen=KEPT_DURATIONS)).append(end - start)
        return result, start, end

    @property
    def is_late(self) -> bool:
        """Whether the current piece of work takes too long."""
        durations = self._durations.get(self._current_op)
        limit = UNKNOWN_LEASES * self._lease_s if durations is None else max(self._lease_s, LATE * max(durations))
        return self._unfinished_s > limit

    async def unless_late(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that uses the device and for which a peer waits, unless the device is late.

        Raises:
            DeviceLate: the text names the work and its seconds.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                self._expire_if_late()
                try:
                    return await work
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeviceLate(f"{self._current_op} for {self._unfinished_s:.3g} s") from None

    async def watch(self) -> NoReturn:
        """Check the device until cancelled.

        Raises:
            DeviceStalled: one piece of work takes far longer than any before it.
        """
        interval_s = self._lease_s / CHECKS_PER_LEASE
        while True:
            requests_before = self._open_requests
            await self.clock.sleep(interval_s)
            if requests_before and self._open_requests:
                self._unfinished_s += interval_s
                self._expire_if_late()
            self._raise_if_stalled()

    def _raise_if_stalled(self) -> None:
        durations = self._durations.get(self._current_op)
        if durations is not None and self._unfinished_s > max(UNKNOWN_LEASES * self._lease_s, STUCK * max(durations)):
            fact = f"seconds: {self._unfinished_s:.0f}, at most {max(durations):.3g} before"
            raise DeviceStalled(
                f"the device is stuck ({self._current_op}, {fact}); look at it, and start this peer again"
            )

    def _expire_if_late(self) -> None:
        if self.is_late:
            now = asyncio.get_running_loop().time()
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(now)
