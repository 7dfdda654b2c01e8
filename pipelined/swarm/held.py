"""What a peer holds of one stage: its parameters, where they are, and what was counted since they were there.

The one rule: between two steps parameters do not change, and ledger and sums say the same whenever the device is free.
Knows the device and who waits for what; it must not know what is asked, nor of whom.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipelined.device import Device
from pipelined.swarm.bell import Bell
from pipelined.swarm.notes import RoundName, whole
from pipelined.swarm.records import Point
from pipelined.swarm.rules import Rules
from pipelined.swarm.stage import SwarmStage
from transports.endpoints import Question, Refusal


@dataclass
class Ledger:
    """What one step's sum at one peer holds.

    Attributes:
        losses: by index, the loss of each microbatch (0 before the last stage).
        frozen: the round for which nothing is counted any more; None: everything is counted.
    """

    losses: dict[int, float] = field(default_factory=dict)
    frozen: RoundName | None = None


class Held:
    """One stage at one peer.

    Args:
        name: of the peer.
        index: which stage.
        point: where its parameters are; `step`, of it, is the next that they are to take.

    Attributes:
        handing_over: another peer is being given what was counted.
        changed: rung when a step was taken, a round has begun, or what is held was given up.
    """

    def __init__(self, name: str, index: int, stage: SwarmStage, point: Point, rules: Rules, device: Device):
        self.name, self.index, self.stage, self.rules, self.device = name, index, stage, rules, device
        self.step, self.lineage = point
        self.ledger, self.handing_over, self.given_up = Ledger(), False, False
        self.changed = Bell()

    @property
    def point(self) -> Point:
        """Where its parameters are."""
        return Point(self.step, self.lineage)

    async def reached(self, step: int) -> None:
        """Wait for the step before to stand; one ahead of that is not waited for.

        Raises:
            Refusal: "stale" or "behind", both with this peer's step.
        """
        if step == self.step + 1:
            await self.until(lambda: self.step >= step)
        if step != self.step:
            raise Refusal("stale" if step < self.step else "behind", step=self.step)

    async def reached_point(self, question: Question) -> None:
        """The same, and in the lineage that is asked about: since the step was asked for all may have gone back."""
        await self.reached(whole(question.note, "step"))
        if question.note.get("lineage", "") != self.lineage:
            raise Refusal("stale", step=self.step)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until this holds. Raises Refusal: "left", what is held was given up."""
        while not holds():
            if self.given_up:
                raise Refusal("left")
            await self.changed.wait()
        if self.given_up:
            raise Refusal("left")

    async def drop(self) -> None:
        """Let go of what was counted."""

        def work() -> None:  # both or neither: whoever asked may be gone before the device is free
            self.ledger.losses.clear()
            self.stage.clear()

        await self.device.run("clear", work)
