"""Asking an embedded directory until it answers. The rule: between a kill and a restart nobody but time gives up.

Knows an endpoint, an address and silence; it must not know what is asked.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipelined.clock import Clock
from pipelined.swarm.directory import letters
from pipelined.swarm.directory.contract import CutOff
from pipelined.swarm.directory.round_trip import RoundTrip
from pipelined.swarm.directory.within import within
from transports.endpoints import Endpoint, Refusal, Unreachable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
AGAIN = ("unknown topic", "busy", "failed", letters.STOPPING)
"""Refusals of a directory that is not yet, no longer, or just now not able to answer."""


class Caller:
    """One client's way to the directory.

    Args:
        patience: seconds without an answer after which it is cut off.
    Attributes:
        round_trip: as observed.
    """

    def __init__(self, endpoint: Endpoint, address: str, clock: Clock, patience: float):
        self.endpoint, self.address, self.patience = endpoint, address, patience
        self.round_trip = RoundTrip()
        self._clock = clock

    async def ask(self, topic: str, letter: Mapping[str, Any], wait: float = 0.0) -> dict[str, Any]:
        """Ask, and ask again after an error or silence; the same letter each time.

        Args:
            wait: seconds that the directory was asked to let pass before it answers.
        Raises:
            CutOff: there was no answer for as long as patience lasts.
            Exception: what a refusal stands for, see `letters.MEANINGS`.
        """
        end, packed = self._clock.now() + max(self.patience, wait), letters.pack(letter)
        for tries, pause in enumerate(_pauses()):
            left = end - self._clock.now()
            try:
                return await self._once(topic, packed, min(left, wait + self.round_trip.silence * 2**tries), tries)
            except (Unreachable, TimeoutError) as error:
                reason: Exception = error
            except Refusal as refusal:
                if refusal.reason not in AGAIN:
                    raise self._meant(refusal) from refusal
                reason = refusal
            if self._clock.now() + pause >= end:
                raise self._cut_off(reason) from reason
            await self._clock.sleep(pause)
        raise AssertionError("pauses do not end")

    async def _once(self, topic: str, packed: bytes, seconds: float, tries: int) -> dict[str, Any]:
        start = self._clock.now()
        answer = await within(self._clock, seconds, self.endpoint.ask(self.address, topic, packed))
        if not tries and topic != letters.CHANGES:
            self.round_trip.add(self._clock.now() - start)
        return letters.unpack(answer)

    def _meant(self, refusal: Refusal) -> Exception:
        if refusal.reason == letters.ANOTHER:
            fact = f"another directory answers at {self.address}, which knows nothing of what was decided"
            return CutOff(f"{fact}; give the coordinator its journal, or start the swarm afresh")
        if refusal.reason == "stale request":
            return CutOff(
                f"the directory at {self.address} does not say whether it happened: {refusal}; read to find out"
            )
        return letters.error_of(refusal)

    def _cut_off(self, reason: Exception) -> CutOff:
        fact = (
            f"the directory at {self.address} gives no answer (seconds: {self.patience:g}, last: {reason or 'silence'})"
        )
        return CutOff(f"{fact}; see that its coordinator runs")


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)
