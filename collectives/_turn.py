"""One collective at a time on a group: whoever calls first goes first, and nobody goes on a broken group.

The one rule: a collective that was left half done leaves bytes on the channel that the next one would take for its
own, so the group refuses all further work. Knows nothing of ranks or bytes.
"""

import asyncio


class BrokenGroup(RuntimeError):
    """An earlier collective on this group failed or was cancelled, and what its channel still holds is unknown."""


class Turn:
    """The right to run a collective, taken with `async with`, given in the order in which it was asked for.

    Raises:
        BrokenGroup: a collective on this group was left before its end; nothing was sent.
    """

    __slots__ = ("_end", "_lock", "_name")

    def __init__(self, name: str):
        self._name = name
        self._lock = asyncio.Lock()
        self._end: BaseException | None = None

    async def __aenter__(self) -> None:
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

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end = error
        self._lock.release()
