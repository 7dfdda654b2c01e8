"""Dropout, whose mask is a hash of each element's index, so that any piece of it can be made without the rest.

The bits are integer arithmetic in int32 and int64 that wraps around: the same on a CPU and on a GPU, and the same
however a tensor is split. An element's index is its row (its place in all dimensions but the last, counted row-major in
the whole tensor) and its column. A row's number and the key give two words of 32 bits by SplitMix64; these and the
column give the element's word by lowbias32, the first word added before the mixing and the second within it.

Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (2014), section 5; the multipliers and shifts
of lowbias32 are by Wellons, Prospecting for Hash Functions (2018).
"""

from collections.abc import Iterator, Sequence

import torch

IndexRanges = Sequence[tuple[int, int]]
"""Ranges [low, high) of the indices of one dimension."""
CHUNK = {"cpu": 1 << 16}
"""Elements that are hashed together, so that what lies between stays in the processor's cache."""
CHUNK_ELSEWHERE = 1 << 22


def dropout_of_piece(
    x: torch.Tensor, p: float, key: int, whole: Sequence[int], piece: Sequence[IndexRanges]
) -> torch.Tensor:
    """Zero each element of a piece with probability p and scale the rest by 1/(1-p).

    Args:
        x: the piece's elements, of any dtype on any device.
        p, key, whole, piece: see `keep_mask`.
    """
    return x * keep_mask(p, key, whole, piece, x.device) / (1.0 - p)


def keep_mask(
    p: float, key: int, whole: Sequence[int], piece: Sequence[IndexRanges], device: torch.device
) -> torch.Tensor:
    """Which elements a dropout keeps, of a piece of a tensor.

    Args:
        p: probability that an element is dropped, 0 <= p < 1; rounded to a multiple of 2**-32.
        key: 0 … 2**63 - 1.
        whole: shape of the whole tensor; its last dimension is below 2**31.
        piece: the ranges of indices of each dimension, as `Shards.pieces` gives them.
        device: where the mask is made.

    Returns:
        True where an element is kept, in the piece's shape.

    Cost: 1.1 to 3.3 ns an element of the piece on one core, and two int32 tensors of a chunk beside the mask.
    """
    *outer, columns = [_indices(ranges, device) for ranges in piece] or [torch.zeros(1, device=device)]
    rows = torch.zeros(1, dtype=torch.int64, device=device)  # their row-major numbers in the whole
    for size, indices in zip(whole[:-1], outer, strict=True):
        rows = (rows[:, None] * size + indices).flatten()
    columns = columns.int()
    least_kept = min(round(p * 2**32) - 2**31, 2**31 - 1)  # among all int32, which hold a word's 32 bits
    mask = torch.empty(len(rows), len(columns), dtype=torch.bool, device=device)
    for chunk in _chunks(len(rows), len(columns), device):
        words = _split_mix_64(key, rows[chunk]).view(torch.int32)
        low, high = words[0::2, None], words[1::2, None]
        torch.ge(_low_bias_32(columns, low, high), least_kept, out=mask[chunk])
    return mask.view([sum(high - low for low, high in ranges) for ranges in piece])


def _indices(ranges: IndexRanges, device: torch.device) -> torch.Tensor:
    """The indices in the ranges, int64."""
    return torch.cat([torch.arange(low, high, device=device) for low, high in ranges or ((0, 0),)])


def _chunks(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    step = max(1, CHUNK.get(device.type, CHUNK_ELSEWHERE) // max(1, columns))
    return (slice(start, start + step) for start in range(0, rows, step))


def _split_mix_64(key: int, n: torch.Tensor) -> torch.Tensor:
    """The n-th word, from 0, of SplitMix64 seeded with the key."""
    word = (n + 1) * _signed(0x9E3779B97F4A7C15, 64) + key
    word = _shifted(word, 30, 64) * _signed(0xBF58476D1CE4E5B9, 64)
    word = _shifted(word, 27, 64) * _signed(0x94D049BB133111EB, 64)
    return _shifted(word, 31, 64)


def _low_bias_32(columns: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """lowbias32 of first + column, with `second` added after the first multiplication and without the last shift.

    The last shift changes low bits only, which a comparison with a bound hardly sees.
    """
    word = _shifted(columns + first, 16, 32)
    word = torch.add(second, word, alpha=0x7FEB352D, out=word)
    return _shifted(word, 15, 32).mul_(_signed(0x846CA68B, 32))


def _shifted(word: torch.Tensor, places: int, bits: int) -> torch.Tensor:
    """The word xor itself shifted right, zeros coming in; in place."""
    right = torch.bitwise_right_shift(word, places).bitwise_and_((1 << (bits - places)) - 1)
    return word.bitwise_xor_(right)


def _signed(number: int, bits: int) -> int:
    """The number of these bits in two's complement."""
    return number - (1 << bits) if number >> (bits - 1) else number
