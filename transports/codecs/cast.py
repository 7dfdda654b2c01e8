"""What both casts to 16 bits share: one part of the array's own shape, in the narrower type."""

from abc import abstractmethod
from collections.abc import Sequence

from transports.codecs.base import Codec
from transports.errors import WireError
from transports.wire.arrays import Block, Layout

WIDE = ("float32", "float64")


class Cast(Codec):
    """float32 and float64 arrays as a type of 16 bits, by way of float32; others travel as they are.

    Attributes:
        narrow: the type's name.
    """

    lossless = False
    narrow: str

    def encode(self, block: Block) -> tuple[Block, ...] | None:
        return (self._narrowed(block),) if block.dtype in WIDE else None

    @abstractmethod
    def _narrowed(self, block: Block) -> Block: ...

    def check(self, parts: Sequence[Block], true: Layout) -> None:
        found = [(part.dtype, part.shape) for part in parts]
        if true.dtype not in WIDE or found != [(self.narrow, true.shape)]:
            raise WireError(f"no {true.dtype} {true.shape} cast to {self.narrow} (parts: {found})")
