"""Where one peer keeps what it saved of the stages that it held: a directory, or, in a simulation, memory.

The one rule: what is on a shelf is whole, and is of this model. Blocking; no peers, no messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipelined.state.manifest import Layout
from pipelined.swarm.records import Mark
from transports import Block


class Shelf(Protocol):
    """Saved stages."""

    def marks(self) -> Sequence[Mark]:
        """Everything that lies there.

        Raises:
            OSError: it cannot be listed.
        """

    def save(self, mark: Mark, state: Mapping[str, Any]) -> None:
        """Keep a state, which nobody changes meanwhile.

        Raises:
            ShelfError: it could not be; what lay there before still does.
        """

    def load(self, at: Mark, layout: Layout) -> Mapping[str, Block]:
        """The tensors of this layout, as they were at this step of this lineage, whichever stages held them.

        Raises:
            ShelfError: they are not all there, or are damaged.
        """


class ShelfError(Exception):
    """Nothing was saved, or nothing loaded."""


@dataclass(frozen=True)
class DiskShelf:
    """A directory, of one machine or shared by many; torch's formats are imported with the first use.

    Args:
        identity: what must agree for a state to fit the model.
        keep: steps of a stage that are kept.
        text: digest of the text that is trained on, as it is recorded.
    """

    directory: Path
    identity: Mapping[str, Any]
    keep: int = 3
    text: str = ""

    def marks(self) -> Sequence[Mark]:
        """See `Shelf`."""
        from pipelined.state.saved import marks

        return marks(self.directory, self.identity)

    def save(self, mark: Mark, state: Mapping[str, Any]) -> None:
        """See `Shelf`; where another peer is saving this stage just now, nothing is done."""
        from pipelined.checkpoints.checkpoint import CheckpointError
        from pipelined.state.saved import save

        try:
            save(self.directory, mark, state, self.identity, self.keep, self.text)
        except (CheckpointError, OSError) as error:
            raise ShelfError(str(error)) from error

    def load(self, at: Mark, layout: Layout) -> Mapping[str, Block]:
        """See `Shelf`."""
        from pipelined.checkpoints.checkpoint import CheckpointError
        from pipelined.state.saved import load

        try:
            return load(self.directory, at, layout, self.identity)
        except (CheckpointError, OSError) as error:
            raise ShelfError(str(error)) from error
