"""Wake all waiting coroutines at once. A call of `wait` after `notify_all` waits for the next one.

Waiting begins with the call of `wait`, not with the await: a task made of it begins a moment later, and would miss a
notification in between.
"""

import asyncio


class Notifier:
    """Notifications are not kept: check the condition first, then wait, without an await between."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        """The next notification, to be awaited."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._next)

    def notify_all(self) -> None:
        """Wake all waiting coroutines."""
        if self._next is not None:
            self._next.set_result(None)
            self._next = None
