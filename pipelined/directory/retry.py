"""Asking until there is an answer. The rule: between a kill and a restart nothing but time makes anyone give up.

Knows a clock and silence; it must not know who is asked, nor what.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.round_trip import RoundTrip
from pipelined.aio.timeouts import with_timeout
from pipelined.directory.api import CutOff

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long a client asks unless told otherwise: a coordinator can be started again by then."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5


class NoAnswer(Exception):
    """There was none, and there may be one the next time; the message says why."""


class Insistence:
    """How long one client asks.

    Args:
        where: the directory is, for messages.
        patience: seconds without an answer after which the client is cut off.
    Attributes:
        round_trip: as observed.
    """

    def __init__(self, where: str, clock: Clock, patience: float):
        self.where, self.patience = where, patience
        self.round_trip = RoundTrip()
        self._clock = clock

    async def ask(self, once: Callable[[], Awaitable[T]], wait: float | None = None) -> T:
        """Ask, and ask again after `NoAnswer` or silence, each time waiting longer.

        Args:
            wait: seconds that who is asked may let pass before it answers, so that it says nothing of a round trip;
                None: it answers at once.
        Raises:
            CutOff: there was no answer for as long as patience lasts.
        """
        end, last = self._clock.now() + max(self.patience, wait or 0.0), None
        for tries, pause in enumerate(_pauses()):
            start = self._clock.now()
            if last is not None and start >= end:  # it slept longer than it was to
                raise self._cut_off(last) from last
            silence = (wait or 0.0) + self.round_trip.silence * 2**tries
            try:
                answer = await with_timeout(self._clock, min(end - start, silence), once())
            except (NoAnswer, TimeoutError) as error:
                if self._clock.now() + pause >= end:
                    raise self._cut_off(error) from error
                last = error
                await self._clock.sleep(pause)
                continue
            if not tries and wait is None:
                self.round_trip.add(self._clock.now() - start)
            return answer
        raise AssertionError("pauses do not end")

    def _cut_off(self, last: Exception) -> CutOff:
        fact = f"the directory at {self.where} gives no answer (seconds: {self.patience:g}, last: {last})"
        return CutOff(f"{fact}; see that it runs and can be reached")


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)
