"""What every codec promises. It sees one array at a time, and never who sends it or what it means.

A codec is one file of this folder and one line of the table in `_find`; the file's name is the codec's. It defines
`def build(argument: str) -> Codec`, where the argument is the text after a colon: `9` of `zstd:9`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from transports.wire.arrays import Block, Layout


class Codec(ABC):
    """One way to make arrays smaller. A codec has no state, so threads may share it.

    Attributes:
        lossless: whether what comes back has the same bits.
    """

    lossless: bool

    @abstractmethod
    def encode(self, block: Block) -> tuple[Block, ...] | None:
        """The coded parts of an array that has at least one byte, or None where it had better travel as it is.

        Raises:
            WireError: values that this codec cannot carry.
        """

    @abstractmethod
    def check(self, parts: Sequence[Block], true: Layout) -> None:
        """See that these parts can be those of such an array, before memory is taken for it.

        Raises:
            WireError: they cannot; it says why.
        """

    @abstractmethod
    def decode(self, parts: Sequence[Block], true: Layout) -> Block:
        """The array again, in fresh memory, of parts that were checked.

        Raises:
            WireError: the parts turn out to be no such array.
        """
