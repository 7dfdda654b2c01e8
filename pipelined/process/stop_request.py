"""Stop requests: after a SIGTERM or SIGUSR1 the run stops at the end of the step; a second SIGTERM ends it at once.

Under openmpi's mpirun SIGTERM ends the job within half a second, so send SIGUSR1 there. A terminal that closes (SIGHUP)
requests a stop, too, unless the process ignores SIGHUP, as under nohup.
"""

import asyncio
import os
import signal
import stat
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pipelined.process.launch import AGENT

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
POLL_S = 0.1
"""Seconds between two checks for a stop request."""
AGAIN_S = 1.0
"""Seconds after a stop request in which a SIGTERM does not end a loop: `timeout` sends two, one to the whole group."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that request this process to stop."""
    return SIGNALS if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*SIGNALS, signal.SIGHUP)


def hang_up() -> None:
    """The terminal is closed: stop writing to it, which would fail, and ignore further SIGHUPs."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with suppress(OSError):  # it was never open
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(nowhere, output)
    os.close(nowhere)


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
    """Call this in the running loop at each stop request from now on, instead of the function that was given before.

    A SIGTERM more than `AGAIN_S` after the first request ends the process.
    """
    loop, requests = asyncio.get_running_loop(), list[float]()
    for number in stop_signals():
        loop.add_signal_handler(number, partial(_on_signal, number, requests, act))


def stop_event() -> asyncio.Event:
    """An event that a stop request sets from now on, instead of what the request did before; see `on_stop_request`."""
    event = asyncio.Event()
    on_stop_request(event.set)
    return event


def _on_signal(number: signal.Signals, requests: list[float], act: Callable[[], Any]) -> None:
    """Act on a stop request. requests: the loop's times of this one and earlier ones."""
    requests.append(asyncio.get_running_loop().time())
    if number == signal.SIGTERM and requests[-1] - requests[0] > AGAIN_S:
        os._exit(128 + number)
    if number == signal.SIGHUP:
        hang_up()
    act()


class StopRequest:
    """Whether this process received a stop request. All ranks in one process share one.

    Args:
        parent: the launcher's process, if the ranks can outlive it: its end counts as a stop request.
    """

    def __init__(self, parent: int | None = None) -> None:
        self._parent, self._signalled = parent, False

    @classmethod
    def of_rank(cls) -> "StopRequest":
        """That of a rank, which can outlive torchrun's agent and no other launcher."""
        return cls(os.getppid() if AGENT in os.environ else None)

    @property
    def requested(self) -> bool:
        return self._signalled or self._parent not in (None, os.getppid())

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
        earlier = {number: signal.getsignal(number) for number in stop_signals()}
        self.listen()
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        if self._signalled and number == signal.SIGTERM:
            os._exit(128 + number)
        if number == signal.SIGHUP:
            hang_up()
        self._signalled = True
