"""How long microbatches take from the giving to the answer, and whose never came back.

The one rule: nobody is late by a constant, but by what was observed of the same kind, whoever answered. It outlives a
step, so that who let one microbatch lie is not waited for in every step anew. Knows slots by their names and seconds.
"""

from collections.abc import Callable

from pipelined.aio.latency import Patience

ENOUGH = 1
"""Answers that tell when others are late: a step may have few, and to ask another in vain costs little."""


class Pace:
    """The answer times of a swarm's slots.

    Args:
        now: the clock.
        least: seconds that are never too long.
    """

    def __init__(self, now: Callable[[], float], least: float):
        self.now = now
        self._patience = {held_out: Patience(least, ENOUGH) for held_out in (False, True)}
        self._doubted = set[str]()

    def observe(self, slot: str, held_out: bool, seconds: float) -> None:
        """A slot answered after so long; it is believed to go on doing so.

        Args:
            held_out: it was validation data, which goes forward only.
        """
        self._patience[held_out].observe(seconds)
        self._doubted.discard(slot)

    def limit(self, held_out: bool) -> float:
        """Seconds after which an answer is late."""
        return self._patience[held_out].limit_after(0)

    def doubt(self, slot: str) -> None:
        """A slot's answer is late, and another was asked."""
        self._doubted.add(slot)

    def doubts(self, slot: str) -> bool:
        """Whether the last that this slot was given never came back in time."""
        return slot in self._doubted

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Those slots are no more."""
        self._doubted = {slot for slot in self._doubted if not gone(slot)}
