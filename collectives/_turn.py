"""One collective at a time on a group: whoever calls first goes first, and nobody goes on a broken group.

The one rule: a collective that was left half done leaves bytes on the channel that the next one would take for its
own, so the group refuses all further work. Knows nothing of ranks or bytes.
"""

import asyncio


class BrokenGroup(RuntimeError):
    """An earlier collective on this group failed or was cancelled, and what its channel still holds is unknown."""


class Turn:
    """The right to run a collective, given in the order in which it was asked for; whoever takes it gives it back."""

    __slots__ = ("_end", "_lock", "_name")

    def __init__(self, name: str):
        self._name = name
        self._lock = asyncio.Lock()
        self._end: BaseException | None = None

    async def take(self) -> None:
        """Wait for the turn.

        Raises:
            BrokenGroup: a collective on this group was left before its end; nothing was sent.
        """
        try:
            await self._lock.acquire()
        except BaseException as left:
            self._end = left  # the other ranks will run the collective that this one now skips
            raise
        if self._end is not None:
            self._lock.release()
            raise BrokenGroup(
                f"{self._name} was left in the middle of a collective ({self._end!r}); "
                "make a new group on a fresh channel on all its ranks"
            ) from self._end

    def give(self, error: BaseException | None) -> None:
        """Give the turn back; with the error that ended the collective, if one did."""
        if error is not None:
            self._end = error
        self._lock.release()
