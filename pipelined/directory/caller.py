"""What one client asks an embedded directory, and what its refusals mean.

Knows an endpoint and an address; it must not know what is asked.
"""

from collections.abc import Mapping
from typing import Any

from pipelined.aio.clock import Clock
from pipelined.directory import messages as letters
from pipelined.directory.api import CutOff, WrongKey
from pipelined.directory.retry import Insistence, NoAnswer
from transports.rpc import Endpoint, Refusal, Unreachable

AGAIN = ("unknown topic", "busy", "failed", letters.STOPPING)
"""Refusals of a directory that is not yet, no longer, or just now not able to answer."""


class Forgotten(CutOff):
    """The directory knows this client no more, or the request was settled: nobody can say whether it happened."""


class Caller:
    """One client's way to the directory.

    Args:
        patience: seconds without an answer after which it is cut off.
    """

    def __init__(self, endpoint: Endpoint, address: str, clock: Clock, patience: float):
        self.endpoint, self.address = endpoint, address
        self.insistence = Insistence(address, clock, patience)

    async def ask(self, topic: str, letter: Mapping[str, Any], wait: float | None = None) -> dict[str, Any]:
        """Ask until there is an answer; the same letter each time.

        Args:
            wait: see `Insistence.ask`.
        Raises:
            CutOff: see there; also where the answer can never come, as with a `WrongKey`.
            Exception: what a refusal stands for, see `letters.MEANINGS`.
        """
        packed = letters.pack(letter)
        return await self.insistence.ask(lambda: self._once(topic, packed), wait)

    async def _once(self, topic: str, packed: bytes) -> dict[str, Any]:
        try:
            return letters.unpack(await self.endpoint.ask(self.address, topic, packed))
        except Unreachable as error:
            if error.wrong_key:
                raise WrongKey(f"the directory at {error}") from error
            raise NoAnswer(str(error)) from error
        except Refusal as refusal:
            raise self._meant(refusal) from refusal

    def _meant(self, refusal: Refusal) -> Exception:
        if refusal.reason in AGAIN:
            return NoAnswer(str(refusal))
        if refusal.reason == letters.ANOTHER:
            fact = f"another directory answers at {self.address}, which knows nothing of what was decided"
            return CutOff(f"{fact}; give the coordinator its journal, or start the swarm afresh")
        if refusal.reason == "stale request":
            fact = f"the directory at {self.address} cannot say whether it happened"
            return Forgotten(f"{fact} ({refusal.facts.get('why')}); read to find out")
        return letters.error_of(refusal)
