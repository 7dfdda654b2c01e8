"""One collective at a time on a group: whoever calls first goes first, and nobody goes on a broken group.

The one rule: a collective that was left half done leaves bytes on the channel that the next one would take for its
own, so the group refuses all further work. Knows nothing of ranks or bytes.

Why not a lock of asyncio's: two coroutines for a turn that is free are a tenth of a short all-reduce.
"""

import asyncio
from collections import deque


class BrokenGroup(RuntimeError):
    """An earlier collective on this group failed or was cancelled, and what its channel still holds is unknown."""


class Turn:
    """The right to run a collective, given in the order in which it was asked for; whoever takes it gives it back."""

    __slots__ = ("_end", "_name", "_taken", "_waiting")

    def __init__(self, name: str):
        self._name = name
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._end: BaseException | None = None

    def take_now(self) -> bool:
        """Take the turn if nobody has it; else `take` is to be awaited.

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
        """To whoever has waited longest and still does; it counts as taken meanwhile."""
        while self._waiting:
            next_one = self._waiting.popleft()
            if not next_one.done():
                return next_one.set_result(None)
        self._taken = False
