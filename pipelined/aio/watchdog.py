"""A device that is watched: whether it gets on, by what it was seen to do.

The one rule: progress counts. As long as one piece of work after another ends nothing is late, however many wait; and
how long one may last follows from what others of its kind lasted. A kind that never ended here may be compiled first:
it is late at last, for others wait, and never called stuck. Only time that this process lived is counted. Knows kinds
of work by their names; it must not know what they are for.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from pipelined.actors.executor import Device
from pipelined.aio.clock import Clock
from transports.rpc import Refusal

T = TypeVar("T")
KEPT = 64
LATE, STUCK = 4.0, 10.0
"""So many times the longest of the last `KEPT` pieces of its kind one may last."""
UNKNOWN_LEASES = 10.0
"""Leases that a kind of work is given at least of which nothing is known, or before a device is called stuck."""
LOOKS = 4
"""In the time of a lease."""


class Stuck(RuntimeError):
    """The device does nothing any more."""


class Watched:
    """A device, asked as any other.

    Args:
        lease_s: seconds of a member's lease; nothing is late before.
    """

    def __init__(self, device: Device, lease_s: float):
        self.clock: Clock = device.clock
        self._device, self._lease_s = device, lease_s
        self._turn, self._doing, self._asked = asyncio.Lock(), "", 0
        self._took, self._still = dict[str, deque[float]](), 0.0
        self._scopes = set[asyncio.Timeout]()

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        """See `Device.run`."""
        self._asked += 1
        try:
            async with self._turn:
                self._doing = op
                try:
                    result, start, end = await self._device.run(op, work)
                except Exception:  # it ended, too
                    self._still = 0.0
                    raise
        finally:
            self._asked -= 1
        self._still = 0.0
        self._took.setdefault(op, deque(maxlen=KEPT)).append(end - start)
        return result, start, end

    @property
    def late(self) -> bool:
        """It does not get on, as far as can be told."""
        took = self._took.get(self._doing)
        limit = UNKNOWN_LEASES * self._lease_s if took is None else max(self._lease_s, LATE * max(took))
        return self._still > limit

    async def unless_late(self, work: Coroutine[Any, Any, T]) -> T:
        """What needs the device and others wait for: as long as the device gets on.

        Raises:
            Refusal: "busy", it does not.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                self._look()
                try:
                    return await work
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise Refusal("busy", doing=self._doing, seconds=round(self._still, 3)) from None

    async def watch(self) -> NoReturn:
        """Look at it until cancelled.

        Raises:
            Stuck: it has been at one piece of work for far longer than it ever was.
        """
        every = self._lease_s / LOOKS
        while True:
            before = self._asked
            await self.clock.sleep(every)
            if before and self._asked:
                self._still += every
                self._look()
            self._check()

    def _check(self) -> None:
        took = self._took.get(self._doing)
        if took is not None and self._still > max(UNKNOWN_LEASES * self._lease_s, STUCK * max(took)):
            told = f"seconds: {self._still:.0f}, at most {max(took):.3g} before"
            raise Stuck(f"the device is stuck ({self._doing}, {told}); look at it, and start this peer again")

    def _look(self) -> None:
        if self.late:
            now = asyncio.get_running_loop().time()
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(now)
