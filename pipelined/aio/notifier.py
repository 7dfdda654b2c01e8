"""A notifier: coroutines wait for a change that another one announces."""

import asyncio


class Notifier:
    """Wakes all waiting coroutines at once. A call of `wait` after `notify_all` waits for the next one.

    Notifications are not stored: check the condition first, then call `wait`, without an await in between. Waiting
    begins at the call of `wait`, not at the await, so a notification between the two is not missed.
    """

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        """A future that completes at the next notification."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._next)

    def notify_all(self) -> None:
        """Wake all waiting coroutines."""
        if self._next is not None:
            self._next.set_result(None)
            self._next = None
