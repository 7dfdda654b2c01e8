"""Retries a request until a reply comes or the patience ends: a killed directory may be restarted meanwhile."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.latency import MAX_DOUBLINGS, Backoff, RoundTrip
from pipelined.aio.tasks import with_timeout
from pipelined.membership.directory.api import CutOff

T = TypeVar("T")
PATIENCE_S = 30.0
"""Default seconds for which a client retries: enough to restart a directory."""
MIN_PATIENCE_S = 2.0
"""Those of a member with a shorter lease."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 0.5


class NoReply(Exception):
    """No reply came, and the next attempt may succeed; the message says why."""


class Retry:
    """The rule by which one client sends a request again: how often, and for how long.

    Args:
        address: of the directory, for messages.
        patience: seconds without a reply after which the client is cut off.
    Attributes:
        round_trip: measured on the replies.
    """

    def __init__(self, address: str, clock: Clock, patience: float):
        self.address, self.patience = address, patience
        self.round_trip = RoundTrip()
        self._clock = clock

    async def run(self, send_once: Callable[[], Awaitable[T]], wait: float | None = None) -> T:
        """Send a request; send it again after `NoReply` or a time-out, which doubles each time.

        Args:
            send_once: sends the request and returns its reply.
            wait: seconds that the server may wait before it replies; such a reply measures no round trip. None: the
                server replies at once.
        Raises:
            CutOff: there was no reply for `patience` seconds.
        """
        deadline = self._clock.now() + max(self.patience, wait or 0.0)
        last_error = None
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        doublings = 0
        while last_error is None or self._clock.now() < deadline:  # a sleep may last longer than requested
            start = self._clock.now()
            timeout = (wait or 0.0) + self.round_trip.timeout * 2**doublings
            remaining_s = deadline - start
            try:
                reply = await with_timeout(self._clock, min(remaining_s, timeout), send_once())
            except (NoReply, TimeoutError) as error:
                # else the deadline cut it short
                if last_error is None or isinstance(error, NoReply) or timeout <= remaining_s:
                    last_error = error
            else:
                if last_error is None and wait is None:
                    self.round_trip.add(self._clock.now() - start)
                return reply
            if self._clock.now() + (pause := backoff.next()) >= deadline:
                break
            await self._clock.sleep(pause)
            doublings = min(doublings + 1, MAX_DOUBLINGS)
        fact = f"the directory at {self.address} does not reply (seconds: {self.patience:g}, last: {last_error})"
        raise CutOff(f"{fact}; see that it runs and can be reached") from last_error
