"""When a peer that was asked to leave may go.

The one rule: the last of a stage serves on until another has its state, or its time is up; of several that are asked at
once the one whose word came last stays, which all see alike, for the directory puts their words in one order. Knows the
view and time; how something is handed over is decided elsewhere.
"""

import math

from pipelined.aio.clock import Clock
from pipelined.membership.client import Asking
from pipelined.membership.view import RETRY_S, MembershipView
from pipelined.swarm.peer.replica import Holding
from pipelined.swarm.records import Peer, Phase

GRACE_S = 20.0
"""Clouds take a machine 30 s after their notice, or later; the rest is for handing over and saving."""


class Leaving:
    """One peer's leave.

    Args:
        name: of the peer.
        grace_s: seconds that the last of a stage serves on at most.
    """

    def __init__(self, name: str, view: MembershipView, clock: Clock, grace_s: float = GRACE_S):
        self._name, self._view, self._clock, self._grace_s = name, view, clock, grace_s
        self._until = math.inf

    @property
    def asked(self) -> bool:
        """Whether this peer is to leave."""
        return self._until < math.inf

    @property
    def left_s(self) -> float:
        """Seconds until it goes whoever is there; infinite before it is asked."""
        return self._until - self._clock.now()

    @property
    def phase(self) -> Phase:
        """What it is to say of itself while it serves."""
        return Phase.PARTING if self.asked else Phase.SERVING

    def ask(self) -> None:
        """It is to leave; asked again nothing changes."""
        if not self.asked:
            self._until = self._clock.now() + self._grace_s
            self._view.look_again()

    def may_go(self, stage: int) -> bool:
        """Whether it can leave now without taking the stage's state along, or must, or nobody trains any more.

        Others are believed only once the directory has this peer's own word: they may be about to leave as well.
        """
        view = self._view
        if not self.asked or not view.trainers or self.left_s <= 0:
            return self.asked
        mine = view.peers.get(self._name)
        said = mine is not None and mine.phase == Phase.PARTING
        return said and any(self._stays(other) for other in view.serving(stage))

    def is_last(self, stage: int) -> bool:
        """Whether nobody else has the stage's state."""
        return all(peer.name == self._name for peer in self._view.holding(stage))

    async def heir_of(self, holding: Holding, asking: Asking) -> str | None:
        """Let another of the stage have what was counted; who has it now, None where there is no use, or no time."""
        view = self._view
        while holding.counted and view.trainers and not view.cut_off and await holding.follow(view.head):
            limit = max(RETRY_S, self.left_s)
            heir = await holding.succession.find_heir(view.serving(holding.index), asking, limit)
            if heir is not None or self.left_s <= 0:
                return heir
            await view.next_change(RETRY_S)
        return None

    def _stays(self, other: Peer) -> bool:
        announced = self._view.announced
        return other.phase == Phase.SERVING or announced[other.name] > announced[self._name]
