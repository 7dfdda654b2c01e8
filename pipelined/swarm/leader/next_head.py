"""The four heads that can follow a committed one, each with what the leader reports of it."""

from dataclasses import dataclass

from pipelined.aio.events import emit, warn
from pipelined.swarm.records.steps import Commit


@dataclass(frozen=True, slots=True)
class Stepped:
    """The head of the next step: every stage holds the total of exactly one batch."""

    head: Commit

    def report(self, before: Commit) -> None:
        """A step that is taken is no event; `CommittedSteps` follows the steps."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The head of the same step once more: its sums did not fit, and set the grids of the next attempt."""

    head: Commit

    def report(self, before: Commit) -> None:
        """Report which step is computed again."""
        emit("step repeated", step=before.step + 1, why="a gradient does not fit the grid of its exact sum")


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The head at a step that all stages saved."""

    head: Commit

    def report(self, before: Commit) -> None:
        """Warn of the steps that are lost."""
        warn("rolled back", step=before.step, to=self.head.step, why="a stage lost every peer that held its state")


@dataclass(frozen=True, slots=True)
class Reassigned:
    """The same head with moves of peers to a stage that no peer that stays holds."""

    head: Commit

    def report(self, before: Commit) -> None:
        """Warn of every move."""
        for peer, stage in self.head.moves.items():
            warn("peer reassigned", peer=peer, stage=stage, why="no peer that stays holds this stage")


NextHead = Stepped | Repeated | RolledBack | Reassigned
