"""The bytes of a frame (preamble, header, body): encoding, and parsing of bytes from an untrusted peer.

    preamble, 20 bytes, big-endian                    header                      body
    magic 4 | version 1 | kind 1 | number 2 |         msgpack array               the blocks' raw bytes,
    header bytes 4 | body bytes 8                     [key, note, [[dtype,        one after the other
                                                      shape], ...]]

Sender and receiver check every number against `LIMITS` before they allocate memory for it: the sender to find its
own mistakes, the receiver because it does not trust the sender. Arrays are never copied: `encode` returns views of
them, and a reader allocates memory (`transports.wire.arrays`) only after it has parsed the header. No I/O and no clock.

The protocols define their kinds of frames: `transports.mpi.frames`, `transports.tcp.peer`, `transports.rpc.frames`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgpack

from transports.errors import SAME_RELEASE, WireError
from transports.wire.arrays import SIZES, ArrayType, Block

Key = tuple[int | str, ...]
"""What a receive matches a message by; at most 16 ints and strings."""
MAGIC = b"\x93pip"
VERSION = 1
_PREAMBLE = struct.Struct("!4sBBHIQ")
PREAMBLE_BYTES = _PREAMBLE.size
NUMBERS = 1 << 16
"""The values that the two bytes of `number` hold: a channel, tag, page or stream, by the kind of the frame."""
_CONTAINERS = (dict, list, tuple)
K = TypeVar("K", bound=IntEnum)
_packer = msgpack.Packer()  # reused: creating one takes longer than packing a header


@dataclass(frozen=True, slots=True)
class WireLimits:
    """The most that a reader accepts and a writer emits.

    Args:
        header: bytes of the msgpack header.
        body: bytes of all blocks together.
        blocks: arrays in a message.
        dims: dimensions of an array.
        key: items in a key.
    """

    header: int = 64 << 10
    body: int = 64 << 30
    blocks: int = 64
    dims: int = 16
    key: int = 16


class FrameKinds(Generic[K]):
    """The kinds of frames of one protocol. A number means the same in all protocols, so some skip numbers.

    Args:
        headerless: the kinds of frames without a header; all others have one.
    """

    __slots__ = ("kinds_by_value",)

    def __init__(self, kinds: type[K], headerless: Sequence[K] = ()):
        self.kinds_by_value = {kind.value: (kind, kind not in headerless) for kind in kinds}  # `kinds(1)` takes 0.25 µs


class Preamble(NamedTuple, Generic[K]):
    """The fixed first part of a frame: its kind, a number, and the sizes of header and body."""

    kind: K
    number: int
    header_bytes: int
    body_bytes: int


class Header(NamedTuple):
    """The header of a message; `nbytes` is the size of its body."""

    key: Key
    note: Any
    layouts: tuple[ArrayType, ...]
    nbytes: int = 0


LIMITS = WireLimits()


def encode(
    kind: IntEnum, key: Key = (), blocks: Sequence[Block] = (), note: Any = None, *, number: int = 0
) -> list[bytes | memoryview]:
    """Encode a frame as buffers to write one after the other: the head, then each block that is not empty.

    Raises:
        WireError: the message is beyond a limit, a value has no wire form, or there is no such number.
    """
    return [encode_head(kind, key, blocks, note, number=number), *[block.data for block in blocks if block.nbytes]]


def encode_head(
    kind: IntEnum, key: Key = (), blocks: Sequence[Block] = (), note: Any = None, *, number: int = 0
) -> bytes:
    """Preamble and header, without the body. Raises as `encode`."""
    return join_head(kind, pack_header(key, blocks, note), sum([block.nbytes for block in blocks]), number)


def join_head(kind: IntEnum, header: bytes, body_bytes: int, number: int = 0) -> bytes:
    """Preamble and header, of a header that `pack_header` packed, or none. Raises WireError: no such number."""
    try:
        return _PREAMBLE.pack(MAGIC, VERSION, kind, number, len(header), body_bytes) + header
    except struct.error as error:
        raise WireError(f"no such number in a frame (number: {number}, numbers: {NUMBERS})") from error


def encode_bare(kind: IntEnum, number: int, body_bytes: int) -> bytes:
    """The head of a frame without a header. Raises WireError: no such number."""
    return join_head(kind, b"", body_bytes, number)


def pack_header(key: Key, blocks: Sequence[Block] = (), note: Any = None) -> bytes:
    """The header of a message.

    Raises:
        WireError: the message is beyond a limit, or a value has no wire form.
    """
    _check_key(key)
    if len(blocks) > LIMITS.blocks:
        raise _over_limit("blocks", len(blocks), LIMITS.blocks)
    body_bytes = sum([_checked_bytes(block.dtype, block.shape) for block in blocks])
    packed = _pack(key, note, blocks)
    if len(packed) > LIMITS.header:
        raise _over_limit("header bytes", len(packed), LIMITS.header)
    if body_bytes > LIMITS.body:
        raise _over_limit("body bytes", body_bytes, LIMITS.body)
    return packed


def parse_preamble(data: bytes | bytearray | memoryview, kinds: FrameKinds[K]) -> Preamble[K]:
    """Parse the first `PREAMBLE_BYTES` of a frame; bytes after them are ignored.

    Raises:
        WireError: too short, wrong magic, another version, a kind of another protocol, sizes beyond the limits, or a
            header where the kind has none (or none where it has one).
    """
    if len(data) < PREAMBLE_BYTES:
        raise WireError(f"preamble cut short (bytes: {len(data)}, needed: {PREAMBLE_BYTES})")
    magic, version, value, number, header_bytes, body_bytes = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"not a frame (magic: {magic!r}, expected: {MAGIC!r}); is another program on this port?")
    if version != VERSION:
        raise WireError(f"frame of another version (version: {version}, expected: {VERSION}); {SAME_RELEASE}")
    if value not in kinds.kinds_by_value:
        raise WireError(f"unknown kind of frame (kind: {value}, known: {', '.join(map(str, kinds.kinds_by_value))})")
    kind, has_header = kinds.kinds_by_value[value]
    if header_bytes > LIMITS.header:
        raise _over_limit("header bytes", header_bytes, LIMITS.header)
    if body_bytes > LIMITS.body:
        raise _over_limit("body bytes", body_bytes, LIMITS.body)
    if has_header is not (header_bytes > 0):
        raise WireError(f"a {kind.name} {'without' if has_header else 'with'} a header (bytes: {header_bytes})")
    return Preamble(kind, number, header_bytes, body_bytes)


def parse_header(preamble: Preamble[Any], data: bytes | bytearray | memoryview) -> Header:
    """Parse the header, which is exactly `preamble.header_bytes` long; the header of a kind without one is empty.

    Raises:
        WireError: it is malformed, exceeds a limit, or its blocks do not add up to the announced body size.
    """
    if len(data) != preamble.header_bytes:
        raise WireError(f"header of the wrong size (bytes: {len(data)}, announced: {preamble.header_bytes})")
    if not data:
        return Header((), None, ())
    header = unpack_header(data)
    if header.nbytes != preamble.body_bytes:
        fact = f"blocks: {header.nbytes} bytes, body: {preamble.body_bytes} bytes"
        raise WireError(f"blocks do not fill the body ({fact})")
    return header


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    """The reverse of `pack_header`.

    Raises:
        WireError: it is malformed, or exceeds a limit.
    """
    key, note, blocks = _fields(data)
    if type(key) is not list or type(blocks) is not list:
        raise WireError(f"header is not [key, note, blocks] (key: {key!r}, blocks: {blocks!r})")
    _check_key(key)
    if len(blocks) > LIMITS.blocks:
        raise _over_limit("blocks", len(blocks), LIMITS.blocks)
    layouts = []
    body_bytes = 0
    for block in blocks:
        dtype, shape = _layout_fields(block)
        body_bytes += _checked_bytes(dtype, shape)
        layouts.append(ArrayType(dtype, tuple(shape)))
    return Header(tuple(key), note, tuple(layouts), body_bytes)


def parse_layout(block: Any) -> ArrayType:
    """Parse a block's [dtype, shape].

    Raises:
        WireError: it is malformed, or exceeds a limit.
    """
    dtype, shape = _layout_fields(block)
    _checked_bytes(dtype, shape)
    return ArrayType(dtype, tuple(shape))


def split_body(layouts: Sequence[ArrayType], body: memoryview) -> tuple[Block, ...]:
    """View a contiguous body as blocks with these layouts; its length must be the sum of theirs."""
    if len(layouts) == 1:
        dtype, shape = layouts[0]
        return (Block(dtype, shape, body),)
    blocks = []
    start = 0
    for layout in layouts:
        stop = start + layout.nbytes
        blocks.append(Block(layout.dtype, layout.shape, body[start:stop]))
        start = stop
    return tuple(blocks)


def _pack(key: Key, note: Any, blocks: Sequence[Block]) -> bytes:
    try:
        packed = _packer.pack((tuple(key), note, [(block.dtype, block.shape) for block in blocks]))
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"key or note cannot be packed (key: {key!r}): {error}") from error
    if isinstance(note, _CONTAINERS):
        _check_map_keys(note)
    return packed


def _check_map_keys(note: Any) -> None:
    """Raise WireError if no reader can parse a map in a note: a tuple becomes a list, which is no key."""
    if isinstance(note, dict):
        for key in note:
            if isinstance(key, _CONTAINERS):
                raise WireError(f"a map in a note may not have a list or tuple as a key (got: {key!r})")
        note = note.values()
    for item in note:
        if isinstance(item, _CONTAINERS):
            _check_map_keys(item)


def _fields(data: bytes | bytearray | memoryview) -> Sequence[Any]:
    try:
        fields = msgpack.unpackb(data, strict_map_key=False)
    except (TypeError, ValueError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"header is not msgpack (bytes: {len(data)}): {error}") from error
    if type(fields) is not list or len(fields) != 3:
        raise WireError(f"header is not [key, note, blocks] (got: {type(fields).__name__}, items expected: 3)")
    return fields


def _check_key(key: Sequence[Any]) -> None:
    if len(key) > LIMITS.key:
        raise _over_limit("key items", len(key), LIMITS.key)
    for item in key:
        if type(item) is not int and type(item) is not str and (type(item) is bool or not isinstance(item, (int, str))):
            raise WireError(f"a key may hold only ints and strings (key: {key!r})")


def _layout_fields(block: Any) -> Sequence[Any]:
    if type(block) is not list or len(block) != 2 or type(block[1]) is not list:
        raise WireError(f"a block is not [dtype, shape] (got: {block!r})")
    return block


def _checked_bytes(dtype: Any, shape: Sequence[Any]) -> int:
    """The bytes of an array of this dtype and shape. Raises WireError if they are invalid or exceed a limit."""
    if type(dtype) is not str or dtype not in SIZES:
        raise WireError(f"unknown dtype (got: {dtype!r}; known: {', '.join(SIZES)})")
    if len(shape) > LIMITS.dims:
        raise _over_limit("dimensions", len(shape), LIMITS.dims)
    nbytes = bound = SIZES[dtype]
    for size in shape:
        if type(size) is not int or size < 0:
            raise WireError(f"a shape may hold only sizes from 0 up (shape: {shape!r})")
        nbytes *= size
        bound *= size or 1  # zeros count as ones: numpy refuses (0, 2**62) too
    if bound > LIMITS.body:
        raise _over_limit("bytes of a block", bound, LIMITS.body)
    return nbytes


def _over_limit(what: str, value: int, limit: int) -> WireError:
    return WireError(f"too many {what} (got: {value}, limit: {limit})")
