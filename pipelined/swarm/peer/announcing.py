"""What one peer says of itself in the directory: where it is, and what it does there.

The one rule: it says so again, and is another by that, when a trainer that banned it asks; but not at everybody's whim.
Knows a peer's record and time; it must not know why it says what.
"""

import math
from collections.abc import Callable

from pipelined.aio.clock import Clock
from pipelined.directory.registration import Standing
from pipelined.swarm.records import Peer, Phase

NEWS_S = 1.0
"""A peer announces itself again at most this often, however many ask for it."""


class Announcing:
    """One peer's words.

    Args:
        name, address: of the peer.
        model: digest of what the swarm trains.
        asked: called when somebody asks for news.
        saves_every: see `Peer.saves_every`; called whenever the peer announces itself.

    Attributes:
        said: what it last said that it does.
    """

    def __init__(
        self,
        name: str,
        address: str,
        model: str,
        clock: Clock,
        asked: Callable[[], None],
        saves_every: Callable[[], int] = lambda: 0,
    ):
        self._name, self._address, self._model = name, address, model
        self._clock, self._tell, self._saves_every, self._said_saves = clock, asked, saves_every, 0
        self.said, self._at, self._asked = Phase.JOINING, clock.now(), False

    @property
    def due_s(self) -> float:
        """Seconds until it is to say again what it said; infinite while nobody asks."""
        return self._at + NEWS_S - self._clock.now() if self._asked else math.inf

    def is_news(self, phase: Phase) -> bool:
        """Whether the directory has something else of this peer than would be said now."""
        return self.said != phase or self._said_saves != self._saves_every()

    def ask(self) -> None:
        """A trainer banned this peer, and would have it back."""
        self._asked = True
        self._tell()

    async def say(self, place: Standing, phase: Phase, stage: int, heir: str = "") -> None:
        """Say this under a standing. Raises: as `Standing.put`."""
        self._asked, self._at, self.said = False, self._clock.now(), phase
        record = self.record(place, phase, stage, heir)
        self._said_saves = record.saves_every
        await place.put(record)

    def record(self, place: Standing, phase: Phase, stage: int, heir: str = "") -> Peer:
        """What `say` would put."""
        return Peer(self._name, self._address, place.incarnation, stage, phase, self._model, heir, self._saves_every())
