"""The contract of every codec. A codec handles one array at a time, and does not know the sender or the meaning.

A codec is one file in this folder and one line of the table `CODECS` in `transports.codecs.registry`; the file's name
is the codec's name. It defines `def build(argument: str) -> Codec`, where the argument is the text after a colon: `9`
in `zstd:9`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from transports.wire.arrays import ArrayType, Block


class Codec(ABC):
    """One way to make arrays smaller. A codec has no state, so threads may share it.

    Attributes:
        lossless: whether the decoded array has the same bits.
    """

    lossless: bool

    @abstractmethod
    def encode(self, block: Block) -> tuple[Block, ...] | None:
        """The coded parts of an array of at least one byte; None if the array should be sent as it is.

        Raises:
            WireError: the codec cannot encode these values.
        """

    @abstractmethod
    def check(self, parts: Sequence[Block], original: ArrayType) -> None:
        """Check that these parts can be those of such an array, before memory is allocated for it.

        Raises:
            WireError: they cannot; the error gives the reason.
        """

    @abstractmethod
    def decode(self, parts: Sequence[Block], original: ArrayType) -> Block:
        """The decoded array, in new memory, from parts that were checked.

        Raises:
            WireError: the parts cannot be decoded to such an array.
        """
