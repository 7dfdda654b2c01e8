"""Packing: a message's arrays encoded by a codec, and decoded. The receiver checks every size before it allocates.

A packed message is sent as an ordinary message: its blocks are the coded parts, and its note is the header

    [codec, [[dtype, shape, parts], ...]]

with one entry for each array; `parts` 0 means one block, sent as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transports.codecs.base import Codec
from transports.codecs.registry import find_codec
from transports.errors import WireError
from transports.wire.arrays import ArrayType, Block
from transports.wire.frames import LIMITS, parse_layout

MAX_PACKED_BYTES = 1 << 30
"""The limit of a message's unpacked bytes when it is packed, and the receiver's default limit."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A message ready to be sent: `transport.send(peer, key, *blocks, note=note)`.

    Args:
        original_bytes: bytes of the arrays before packing.
    """

    blocks: tuple[Block, ...]
    note: list[Any]
    original_bytes: int

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)


def pack(spec: str, arrays: Sequence[Any], what: str = "an array") -> Packed:
    """Encode arrays by the codec that `spec` names.

    Args:
        what: the name of the arrays in an error.
    Raises:
        ValueError: no such codec. WireError: more than `MAX_PACKED_BYTES`, or values that the codec cannot encode.
    """
    codec = find_codec(spec)
    plain = [Block.of(array) for array in arrays]
    original_bytes = sum(block.nbytes for block in plain)
    if original_bytes > MAX_PACKED_BYTES:
        fact = f"{what}: too many bytes to pack (bytes: {original_bytes}, limit: {MAX_PACKED_BYTES})"
        raise WireError(f"{fact}; send less at once")
    blocks, entries = list[Block](), list[list[Any]]()
    for block in plain:
        try:
            parts = codec.encode(block) if block.nbytes else None
        except WireError as error:
            raise WireError(f"{what}: {error}") from error
        blocks += [block] if parts is None else parts
        entries.append([block.dtype, list(block.shape), len(parts or ())])
    return Packed(tuple(blocks), [spec, entries], original_bytes)


def unpack(blocks: Sequence[Block], note: Any, max_bytes: int = MAX_PACKED_BYTES) -> tuple[Block, ...]:
    """The arrays of a received packed message.

    Args:
        max_bytes: the limit of all arrays together, in bytes; more is refused before memory is allocated.
    Raises:
        WireError: an unknown codec, a malformed header, or parts that do not match the announced arrays.
    Cost: new memory for the coded arrays; arrays that were sent as they are, are not copied.
    """
    codec, entries = _header(note)
    original_bytes = sum(original.nbytes for original, _ in entries)
    if original_bytes > max_bytes:
        raise WireError(f"too many bytes in a packed message (announced: {original_bytes}, limit: {max_bytes})")
    needed = sum(count or 1 for _, count in entries)
    if needed != len(blocks):
        raise WireError(f"packed parts do not match their header (parts: {len(blocks)}, announced: {needed})")
    remaining_blocks = iter(blocks)
    parts = [(original, count, tuple(islice(remaining_blocks, count or 1))) for original, count in entries]
    for original, count, coded_parts in parts:
        if count:
            codec.check(coded_parts, original)
        else:
            _check_as_it_is(coded_parts[0], original)
    return tuple(
        codec.decode(coded_parts, original) if count else coded_parts[0] for original, count, coded_parts in parts
    )


def _header(note: Any) -> tuple[Codec, list[tuple[ArrayType, int]]]:
    match note:
        case [str(spec), list(entries)] if len(entries) <= LIMITS.blocks:
            return _codec(spec), [_entry(entry) for entry in entries]
    raise WireError(f"a packed message without its header [codec, arrays] (got: {type(note).__name__})")


def _codec(spec: str) -> Codec:
    try:
        return find_codec(spec)
    except ValueError as error:
        raise WireError(str(error)) from error


def _entry(entry: Any) -> tuple[ArrayType, int]:
    if type(entry) is not list or len(entry) != 3 or type(entry[2]) is not int or not 0 <= entry[2] <= LIMITS.blocks:
        raise WireError(f"a packed array is not [dtype, shape, parts] (got: {str(entry)[:80]})")
    return parse_layout(entry[:2]), entry[2]


def _check_as_it_is(block: Block, original: ArrayType) -> None:
    if (block.dtype, block.shape) != (original.dtype, original.shape):
        fact = f"block: {block.dtype} {block.shape}, announced: {original.dtype} {original.shape}"
        raise WireError(f"a block that was left as it is differs from its header ({fact})")
