"""The state of one stage at one peer: its parameters, their version, and what was counted since the last step.

Parameters do not change between two steps. Ledger and gradient sums agree whenever the device is free.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from pipelined.actors.executor import Device
from pipelined.aio.notifier import Notifier
from pipelined.swarm.config import Rules
from pipelined.swarm.protocol import RoundName, whole
from pipelined.swarm.records import Version
from pipelined.swarm.stages.stage import SwarmStage
from transports.rpc import Rejected, Request


@dataclass
class Ledger:
    """What one step's sum at one peer holds.

    Attributes:
        losses: by index, the loss of each microbatch (0 before the last stage).
        frozen: the round for which nothing is counted any more; None: everything is counted.
    """

    losses: dict[int, float] = field(default_factory=dict)
    frozen: RoundName | None = None


class StageState:
    """One stage at one peer, shared by the parts of a replica that answer requests.

    Args:
        name: of the peer.
        index: which stage.
        version: of its parameters; its `step` is the next that they are to take.
        basis: names what they follow from; see `Head`.

    Attributes:
        next_ledger: where updates are delayed, of the step after the one that stands.
        handing_over: another peer is being given what was counted.
        changed: notified when a step was applied, a round has begun, or the replica was given up.
    """

    def __init__(
        self, name: str, index: int, stage: SwarmStage, version: Version, basis: str, rules: Rules, device: Device
    ):
        self.name, self.index, self.stage, self.rules, self.device = name, index, stage, rules, device
        (self.step, self.lineage), self.basis = version, basis
        self.ledger, self.next_ledger = Ledger(), Ledger()
        self.handing_over = self.given_up = False
        self.changed = Notifier()

    @property
    def version(self) -> Version:
        """The version of its parameters."""
        return Version(self.step, self.lineage)

    async def reached(self, step: int) -> None:
        """Wait for the step before to stand; one ahead of that is not waited for.

        Raises:
            Rejected: "stale" or "behind", both with this peer's step.
        """
        if step == self.step + 1:
            await self.until(lambda: self.step >= step)
        if step != self.step:
            raise Rejected("stale" if step < self.step else "behind", step=self.step)

    async def reached_version(self, request: Request) -> None:
        """The same, and in the lineage that is asked about: since the step was asked for all may have gone back."""
        await self.reached(whole(request.note, "step"))
        if request.note.get("lineage", "") != self.lineage:
            raise Rejected("stale", step=self.step)

    async def reached_basis(self, request: Request, ahead: bool) -> None:
        """The same of the parameters that a pass is for.

        Args:
            ahead: where updates are delayed, those of the next step will do too: all that they follow from is here.
        """
        step, basis = whole(request.note, "step"), request.note.get("lineage", "")
        if ahead and self.rules.delayed and (step, basis) == (self.step + 1, self.lineage):
            return
        await self.reached(step)
        if basis != self.basis:
            raise Rejected("stale", step=self.step)

    def ledger_of(self, step: int) -> Ledger:
        """Of the step that stands, or of the next."""
        return self.ledger if step == self.step else self.next_ledger

    def go_on(self, version: Version, basis: str) -> None:
        """A step was taken: what was counted of the next is what is counted now."""
        (self.step, self.lineage), self.basis = version, basis
        self.ledger, self.next_ledger = self.next_ledger, Ledger()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until this holds. Raises Rejected: "left", the replica was given up."""
        while not holds():
            if self.given_up:
                raise Rejected("left")
            await self.changed.wait()
        if self.given_up:
            raise Rejected("left")

    async def counted(self) -> tuple[np.ndarray, Mapping[int, float]]:
        """The sums of the step that stands, and their losses, when what is being counted now is in.

        Nobody writes to these sums while nothing more is counted, though the next step may be under way.
        """

        def work() -> np.ndarray:
            return self.stage.sums.copy() if self.rules.delayed else self.stage.sums

        return (await self.device.run("counted", work))[0], self.ledger.losses

    async def drop(self, next_too: bool = False) -> None:
        """Let go of what was counted of the step that stands, and perhaps of the next."""

        def work() -> None:  # both or neither: whoever asked may be gone before the device is free
            self.ledger.losses.clear()
            self.stage.clear()
            if next_too and self.rules.delayed:
                self.next_ledger.losses.clear()
                self.stage.clear_next()

        await self.device.run("clear", work)
