"""A message that came over MPI. The one rule: its bytes are here, or a tag says how to get them."""

from collections.abc import Sequence
from dataclasses import dataclass

from transports.wire.arrays import Block, fill, landing
from transports.wire.frames import Header


@dataclass(slots=True)
class Message:
    """A message that came.

    Args:
        tag: what its bytes are held under at the sender.
        blocks: its bytes; None while they are held there.
    """

    header: Header
    tag: int
    blocks: tuple[Block, ...] | None

    def land(self, into: Sequence[Block] | None) -> tuple[Block, ...]:
        """The blocks to hand out: filled, unless their bytes are still held at the sender."""
        if self.blocks is None:
            return landing(self.header.layouts, into)
        if into is None:
            return self.blocks
        blocks = landing(self.header.layouts, into)
        fill(blocks, self.blocks)
        return blocks
