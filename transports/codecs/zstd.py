"""Zstandard compression of an array's bytes, if samples of them show that it helps.

An array that does not shrink by at least 5 % is sent as it is. A zstd frame is decompressed only if it states its
content size, and that is the size in the message's header.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import zstandard

from transports.codecs.base import Codec
from transports.codecs.registry import int_argument
from transports.errors import WireError
from transports.wire.arrays import ArrayType, Block

LEVEL = 1
WORTHWHILE = 0.95
"""The largest compressed share of the bytes that is still sent compressed."""
SAMPLE = 1 << 14
SAMPLES = 4
"""Bytes of a sample, and the number of samples, evenly spread."""


def build(argument: str) -> Codec:
    """The codec at its default level, or at a level from 1 (fastest) to 19."""
    return Zstandard(int_argument("zstd", argument, LEVEL, 1, 19))


class Zstandard(Codec):
    """Compresses arrays of any type, if that helps.

    Args:
        level: zstd's compression level.
    """

    lossless = True

    def __init__(self, level: int):
        self.level = level

    def encode(self, block: Block) -> tuple[Block, ...] | None:
        compressor = zstandard.ZstdCompressor(level=self.level)  # one for each call: threads may not share it
        if not self._helps(compressor, block.data):
            return None
        packed = compressor.compress(block.data)
        return (Block.of(packed),) if len(packed) <= WORTHWHILE * block.nbytes else None

    def check(self, parts: Sequence[Block], original: ArrayType) -> None:
        if len(parts) != 1 or parts[0].dtype != "uint8":
            raise WireError(f"expected one uint8 part from zstd (parts: {[part.dtype for part in parts]})")
        try:
            size = zstandard.get_frame_parameters(parts[0].data).content_size
        except zstandard.ZstdError as error:
            raise WireError(f"no zstd frame (bytes: {parts[0].nbytes}): {error}") from error
        if size != original.nbytes:
            size_text = "unknown" if size == zstandard.CONTENTSIZE_UNKNOWN else size
            raise WireError(f"a zstd frame of another size (holds: {size_text}, announced: {original.nbytes} bytes)")

    def decode(self, parts: Sequence[Block], original: ArrayType) -> Block:
        try:
            plain = zstandard.ZstdDecompressor().decompress(parts[0].data, original.nbytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise WireError(f"a broken zstd frame (bytes: {parts[0].nbytes}): {error}") from error
        return Block(original.dtype, original.shape, memoryview(bytearray(plain)))

    @staticmethod
    def _helps(compressor: zstandard.ZstdCompressor, data: memoryview) -> bool:
        """Whether samples of the data shrink; True for small arrays, which are compressed without sampling."""
        if len(data) <= SAMPLE * SAMPLES:
            return True
        samples = list(_samples(data))
        return sum(len(compressor.compress(sample)) for sample in samples) <= WORTHWHILE * sum(map(len, samples))


def _samples(data: memoryview) -> Iterator[memoryview]:
    for start in np.linspace(0, len(data) - SAMPLE, SAMPLES).astype(int).tolist():
        yield data[start : start + SAMPLE]
