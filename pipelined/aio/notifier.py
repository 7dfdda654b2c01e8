"""A bell that all who wait hear at once. The rule: who begins to wait after it rang waits for the next ring.

One waits from the call of `wait` on, not from the await: a task that is made of it begins a moment later, and what
rings in between would be lost.
"""

import asyncio


class Bell:
    """Nothing is remembered of a ring: look first, then wait, without an await between."""

    def __init__(self) -> None:
        self._ring: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        """The next ring, to be awaited."""
        if self._ring is None:
            self._ring = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._ring)

    def ring(self) -> None:
        """Wake all who wait."""
        if self._ring is not None:
            self._ring.set_result(None)
            self._ring = None
