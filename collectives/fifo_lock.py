"""A lock that runs one collective at a time on a group, in the order of the calls.

A collective that was left half done leaves bytes on the channel that the next one would take for its own, so a broken
group refuses all further work.

Why not a lock of asyncio's: two coroutines for a turn that is free are a tenth of a short all-reduce.
"""

import asyncio
from collections import deque


class BrokenGroup(RuntimeError):
    """An earlier collective on this group failed or was cancelled, and what its channel still holds is unknown."""


class FifoLock:
    """The right to run a collective, given in the order of the requests; the holder gives it back."""

    __slots__ = ("_end", "_name", "_taken", "_waiting")

    def __init__(self, name: str):
        self._name = name
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._end: BaseException | None = None

    def take_now(self) -> bool:
        """Take the turn if it is free; else await `take`.

        Raises:
            BrokenGroup: as `take`.
        """
        if self._taken:
            return False
        self._check()
        self._taken = True
        return True

    async def take(self) -> None:
        """Wait for the turn.

        Raises:
            BrokenGroup: a collective on this group was left before its end; nothing was sent.
        """
        if self.take_now():
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except BaseException as left:
            self._end = left  # the other ranks will run the collective that this one now skips
            if mine.done() and not mine.cancelled():
                self._pass_on()
            raise
        try:
            self._check()
        except BrokenGroup:
            self._pass_on()
            raise

    def give(self, error: BaseException | None) -> None:
        """Give the turn back; with the error that ended the collective, if one did."""
        if error is not None:
            self._end = error
        self._pass_on()

    def _check(self) -> None:
        if self._end is not None:
            raise BrokenGroup(
                f"{self._name} was left in the middle of a collective ({self._end!r}); "
                "make a new group on a fresh channel on all its ranks"
            ) from self._end

    def _pass_on(self) -> None:
        """Give the turn to the call that has waited longest; it counts as taken meanwhile."""
        while self._waiting:
            next_one = self._waiting.popleft()
            if not next_one.done():
                return next_one.set_result(None)
        self._taken = False
