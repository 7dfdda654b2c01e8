"""Eight bits a value: the nearest of 256 values, times the largest magnitude of the value's block.

A block is 4096 values, or the given number (`blockwise8:256`); it is sent as its codes and one float32 scale. Every
code is the one nearest to value / scale. Arrays are processed in pieces that fit the core's cache, by calls into numpy
that are long enough to let other threads run.

Cost: n + 4⌈n / block_length⌉ bytes for n values of any type; memory of 20 bytes for each value of one piece.
Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, sections 2.1 and 2.2.
"""

import sys
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from transports.codecs.base import Codec
from transports.codecs.code_book import PairLookUp, cell_table, code_book
from transports.codecs.floats import FLOATS, as_float32, from_float32
from transports.codecs.registry import int_argument
from transports.errors import WireError
from transports.wire.arrays import ArrayType, Block

DEFAULT_BLOCK_LENGTH = 4096
PIECE, DECODED_PIECE = 1 << 16, 1 << 19
"""Values encoded, and decoded, at once."""


def build(argument: str) -> Codec:
    """The codec with its default block, or with a block of the given number of values."""
    block_length = int_argument("blockwise8", argument, DEFAULT_BLOCK_LENGTH, 2, PIECE)
    if block_length % 2:
        raise ValueError(f"blockwise8 takes blocks of an even number of values (got: {block_length})")
    return Blockwise8(block_length)


class Blockwise8(Codec):
    """Floating-point arrays in eight bits a value; other arrays are sent as they are.

    Args:
        block_length: values that share a scale.
    """

    lossless = False

    def __init__(self, block_length: int):
        self.block_length = block_length

    def encode(self, block: Block) -> tuple[Block, ...] | None:
        if block.dtype not in FLOATS:
            return None
        codes, scales = quantise(as_float32(block), self.block_length)
        if not np.isfinite(scales).all():
            index = int(np.flatnonzero(~np.isfinite(scales))[0]) * self.block_length
            fact = f"a value that is not finite, or beyond float32, among the {self.block_length} from value {index} on"
            raise WireError(f"{fact}, which blockwise8 cannot carry; look for why the numbers diverge")
        return Block.of(codes), Block.of(scales)

    def check(self, parts: Sequence[Block], original: ArrayType) -> None:
        count = prod(original.shape)
        needed = [("uint8", (count,)), ("float32", (-(-count // self.block_length),))]
        layouts = [(part.dtype, part.shape) for part in parts]
        if original.dtype not in FLOATS or layouts != needed:
            raise WireError(
                f"no {original.dtype} {original.shape} in eight bits a value (parts: {layouts}, needed: {needed})"
            )
        scales = parts[1].numpy()
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise WireError("a scale that is negative or not finite in eight-bit blocks")

    def decode(self, parts: Sequence[Block], original: ArrayType) -> Block:
        return from_float32(dequantise(parts[0].numpy(), parts[1].numpy(), self.block_length), original)


def quantise(values: np.ndarray, block_length: int = DEFAULT_BLOCK_LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Encode flat float32 values.

    Returns: codes, uint8 (n,), and scales, float32 (⌈n / block_length⌉,). If a value is not finite, its block's scale
        is not finite either, and the block's codes are invalid.
    """
    codes = np.empty(values.size, np.uint8)
    scales = np.empty(-(-values.size // block_length), np.float32)
    scratch = _Scratch(min(values.size, PIECE))
    for piece, scale_range, width in _pieces(values.size, block_length, PIECE):
        rows = values[piece].reshape(-1, width)
        np.maximum(abs(rows.max(axis=1)), abs(rows.min(axis=1)), out=scales[scale_range])
        scratch.look_up(rows, scales[scale_range], codes[piece])
    return codes, scales


def dequantise(codes: np.ndarray, scales: np.ndarray, block_length: int = DEFAULT_BLOCK_LENGTH) -> np.ndarray:
    """The values, float32 (n,), of codes, uint8 (n,), and scales, float32 (⌈n / block_length⌉,)."""
    scales = np.require(scales, requirements="W")  # torch accepts only writable memory
    values = np.empty(codes.size, np.float32)
    look_up = PairLookUp(min(codes.size, DECODED_PIECE) // 2)
    for piece, scale_range, width in _pieces(codes.size, block_length, DECODED_PIECE):
        piece_codes, piece_values = codes[piece], values[piece]
        even = piece_codes.size // 2 * 2
        look_up(piece_codes[:even], piece_values[:even])
        piece_values[even:] = code_book()[piece_codes[even:]]
        _multiply(piece_values.reshape(-1, width), scales[scale_range])
    return values


def _multiply(rows: np.ndarray, scales: np.ndarray) -> None:
    """Multiply each row (width,) by its scale, in index; by torch if it is imported, which takes half as long."""
    if (torch := sys.modules.get("torch")) is None:
        rows *= scales[:, None]
    else:
        torch.from_numpy(rows).mul_(torch.from_numpy(scales)[:, None])


def _pieces(size: int, block_length: int, piece: int) -> Iterator[tuple[slice, slice, int]]:
    """(values, scales, values in a block) of each piece: whole blocks first, then the short last block."""
    whole_blocks, step = size // block_length, piece // block_length
    for start in range(0, whole_blocks, step):
        stop = min(start + step, whole_blocks)
        yield slice(start * block_length, stop * block_length), slice(start, stop), block_length
    if size % block_length:
        yield slice(whole_blocks * block_length, size), slice(whole_blocks, None), size % block_length


class _Scratch:
    """Memory for one piece, reused for the next piece.

    Args:
        size: values of the largest piece.
    """

    def __init__(self, size: int):
        self._scaled, self._entries = np.empty(size, np.float32), np.empty(size, np.uint32)
        self._indices = np.empty(size, np.intp)
        self._table = cell_table()

    def look_up(self, rows: np.ndarray, scales: np.ndarray, codes: np.ndarray) -> None:
        """Fill in the codes (n,) of some blocks (rows, width); see `transports.codecs.code_book` for the arithmetic."""
        scaled, entries, indices = self._scaled[: rows.size], self._entries[: rows.size], self._indices[: rows.size]
        bits = scaled.view(np.uint32)
        with np.errstate(invalid="ignore"):
            divisors = np.where(scales > 0, scales, np.float32(1))
            np.divide(rows, divisors[:, None], out=scaled.reshape(rows.shape))
        np.right_shift(bits, 16, out=entries)
        indices[:] = entries
        np.take(self._table, indices, out=entries, mode="wrap")
        bits &= 0xFFFF
        entries += bits
        np.right_shift(entries, 16, out=bits)
        entries >>= 24
        bits ^= entries
        np.copyto(codes, bits, casting="unsafe")
