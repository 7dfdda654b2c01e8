"""The bytes of a frame (preamble, header, body): encoding, and parsing of bytes from an untrusted peer.

    preamble, 20 bytes, big-endian                    header                      body
    magic 4 | version 1 | kind 1 | channel 2 |        msgpack array               the blocks' raw bytes,
    header bytes 4 | body bytes 8                     [key, note, [[dtype,        one after the other
                                                      shape], ...]]

Sender and receiver check every number against `WireLimits` before they allocate memory for it: the sender to find its
own mistakes, the receiver because it does not trust the sender. Arrays are never copied: `encode` returns views of
them, and a reader allocates memory (`transports.wire.arrays`) only after it has parsed the header. No I/O and no clock.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from transports.errors import WireError
from transports.wire.arrays import SIZES, ArrayType, Block

Key = tuple[int | str, ...]
"""The address of a message; at most 16 ints and strings."""
MAGIC = b"\x93pip"
VERSION = 1
_PREAMBLE = struct.Struct("!4sBBHIQ")
PREAMBLE_BYTES = _PREAMBLE.size
CHANNEL_NUMBERS = 1 << 16
"""The numbers that the two bytes of `channel` hold: channels, tags, pages and streams, from 0 up."""


class Kind(IntEnum):
    """The kind of a frame."""

    MESSAGE = 1  # an addressed message; its body follows the header
    RTS = 2  # ready to send: the header of an addressed message; its body stays at the sender under number `channel`
    BUFFER = 3  # bare bytes on `channel`, without a header
    ABORT = 4  # the sender failed; `note` is the reason
    GOODBYE = 5  # the sender closed in order and sends nothing more
    SHARED = 6  # an addressed message; its body is in memory that both ends share, from page `channel` on
    RTS_BUFFER = 7  # as RTS, for bare bytes; the key is their channel
    CTS = 8  # clear to send: a receive is posted for number `channel`
    DATA = 9  # the body of number `channel`, without a header
    CREDIT = 10  # the receiver has consumed `note` bytes of unexpected messages
    REQUEST = 11  # from one endpoint to another; if `channel` is set, the body follows in parts of that number
    RESPONSE = 12  # to a request, in the same form
    REJECTED = 13  # instead of a response
    CANCEL = 14  # the requester no longer waits for the response
    PART = 15  # a part of the body with number `channel`, without a header; 0 bytes: the rest will not be sent


WITHOUT_HEADER = (Kind.BUFFER, Kind.CTS, Kind.DATA, Kind.PART)
MESSAGE, SHARED = Kind.MESSAGE, Kind.SHARED  # faster: Python 3.11 calls a function at each `Kind.MESSAGE`
_KINDS = {kind.value: kind for kind in Kind}  # faster: `Kind(1)` takes 0.25 µs
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


class Preamble(NamedTuple):
    """The fixed first part of a frame: its kind, its channel, and the sizes of header and body."""

    kind: Kind
    channel: int
    header_bytes: int
    body_bytes: int


class Header(NamedTuple):
    """The header of a message; `nbytes` is the size of its body."""

    key: Key
    note: Any
    layouts: tuple[ArrayType, ...]
    nbytes: int = 0


DEFAULT_LIMITS = WireLimits()


def encode(
    kind: Kind,
    key: Key = (),
    blocks: Sequence[Block] = (),
    note: Any = None,
    *,
    channel: int = 0,
    limits: WireLimits = DEFAULT_LIMITS,
) -> list[bytes | memoryview]:
    """Encode a frame as buffers to write one after the other: the head, then each block that is not empty.

    Raises:
        WireError: the message is beyond a limit, a value has no wire form, or there is no such channel.
    """
    head = encode_head(kind, key, blocks, note, channel=channel, limits=limits)
    return [head, *[block.data for block in blocks if block.nbytes]]


def encode_head(
    kind: Kind,
    key: Key = (),
    blocks: Sequence[Block] = (),
    note: Any = None,
    *,
    channel: int = 0,
    limits: WireLimits = DEFAULT_LIMITS,
) -> bytes:
    """Preamble and header, without the body. Raises as `encode`."""
    _check_key(key, limits)
    if len(blocks) > limits.blocks:
        raise _over_limit("blocks", len(blocks), limits.blocks)
    body_bytes = sum([_checked_bytes(block.dtype, block.shape, limits) for block in blocks])
    packed = _pack(key, note, blocks)
    if len(packed) > limits.header:
        raise _over_limit("header bytes", len(packed), limits.header)
    if body_bytes > limits.body:
        raise _over_limit("body bytes", body_bytes, limits.body)
    return _preamble(kind, channel, len(packed), body_bytes) + packed


def encode_buffer(channel: int, nbytes: int) -> bytes:
    """The head of `nbytes` bare bytes on a channel. Raises WireError for a channel beyond `CHANNEL_NUMBERS`."""
    return _preamble(Kind.BUFFER, channel, 0, nbytes)


def encode_bare(kind: Kind, channel: int, nbytes: int) -> bytes:
    """The head of a frame of a kind without a header. Raises WireError for a channel beyond `CHANNEL_NUMBERS`."""
    return _preamble(kind, channel, 0, nbytes)


def parse_preamble(data: bytes | bytearray | memoryview, limits: WireLimits = DEFAULT_LIMITS) -> Preamble:
    """Parse the first `PREAMBLE_BYTES` of a frame; bytes after them are ignored.

    Raises:
        WireError: too short, wrong magic, another version, an unknown kind, or sizes beyond the limits.
    """
    if len(data) < PREAMBLE_BYTES:
        raise WireError(f"preamble cut short (bytes: {len(data)}, needed: {PREAMBLE_BYTES})")
    magic, version, kind, channel, header_bytes, body_bytes = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"not a frame (magic: {magic!r}, expected: {MAGIC!r}); is another program on this port?")
    if version != VERSION:
        raise WireError(f"frame of another version (version: {version}, expected: {VERSION}); use one release")
    known = _KINDS.get(kind)
    if known is None:
        raise WireError(f"unknown kind of frame (kind: {kind}, known: {min(Kind):d} to {max(Kind):d})")
    if header_bytes > limits.header:
        raise _over_limit("header bytes", header_bytes, limits.header)
    if body_bytes > limits.body:
        raise _over_limit("body bytes", body_bytes, limits.body)
    return Preamble(known, channel, header_bytes, body_bytes)


def parse_header(
    preamble: Preamble, data: bytes | bytearray | memoryview, limits: WireLimits = DEFAULT_LIMITS
) -> Header:
    """Parse the header, which is exactly `preamble.header_bytes` long.

    Raises:
        WireError: it is malformed, exceeds a limit, or its blocks do not add up to the announced body size.
    """
    if len(data) != preamble.header_bytes:
        raise WireError(f"header of the wrong size (bytes: {len(data)}, announced: {preamble.header_bytes})")
    if preamble.kind in WITHOUT_HEADER:
        return _check_headerless(preamble)
    key, note, blocks = _fields(data)
    if type(key) is not list or type(blocks) is not list:
        raise WireError(f"header is not [key, note, blocks] (key: {key!r}, blocks: {blocks!r})")
    _check_key(key, limits)
    if len(blocks) > limits.blocks:
        raise _over_limit("blocks", len(blocks), limits.blocks)
    layouts, body_bytes = [], 0
    for block in blocks:
        dtype, shape = _layout_fields(block)
        body_bytes += _checked_bytes(dtype, shape, limits)
        layouts.append(ArrayType(dtype, tuple(shape)))
    if body_bytes != preamble.body_bytes:
        raise WireError(f"blocks do not fill the body (blocks: {body_bytes} bytes, body: {preamble.body_bytes} bytes)")
    return Header(tuple(key), note, tuple(layouts), body_bytes)


def parse_layout(block: Any, limits: WireLimits = DEFAULT_LIMITS) -> ArrayType:
    """Parse a block's [dtype, shape].

    Raises:
        WireError: it is malformed, or exceeds a limit.
    """
    dtype, shape = _layout_fields(block)
    _checked_bytes(dtype, shape, limits)
    return ArrayType(dtype, tuple(shape))


def split_body(layouts: Sequence[ArrayType], body: memoryview) -> tuple[Block, ...]:
    """View a contiguous body as blocks with these layouts; its length must be the sum of theirs."""
    if len(layouts) == 1:
        dtype, shape = layouts[0]
        return (Block(dtype, shape, body),)
    blocks, start = [], 0
    for layout in layouts:
        end = start + layout.nbytes
        blocks.append(Block(layout.dtype, layout.shape, body[start:end]))
        start = end
    return tuple(blocks)


def _preamble(kind: Kind, channel: int, header_bytes: int, body_bytes: int) -> bytes:
    try:
        return _PREAMBLE.pack(MAGIC, VERSION, kind, channel, header_bytes, body_bytes)
    except struct.error as error:
        raise WireError(f"no such channel in a frame (channel: {channel}, channels: {CHANNEL_NUMBERS})") from error


def _check_headerless(preamble: Preamble) -> Header:
    if preamble.header_bytes > 0:
        raise _over_limit(f"header bytes of a {preamble.kind.name}", preamble.header_bytes, 0)
    return Header((), None, ())


def _pack(key: Key, note: Any, blocks: Sequence[Block]) -> bytes:
    try:
        return _packer.pack((tuple(key), note, [(block.dtype, block.shape) for block in blocks]))
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"key or note cannot be packed (key: {key!r}): {error}") from error


def _fields(data: bytes | bytearray | memoryview) -> Sequence[Any]:
    try:
        fields = msgpack.unpackb(data, strict_map_key=False)
    except (TypeError, ValueError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"header is not msgpack (bytes: {len(data)}): {error}") from error
    if type(fields) is not list or len(fields) != 3:
        raise WireError(f"header is not [key, note, blocks] (got: {type(fields).__name__}, items expected: 3)")
    return fields


def _check_key(key: Sequence[Any], limits: WireLimits) -> None:
    if len(key) > limits.key:
        raise _over_limit("key items", len(key), limits.key)
    for item in key:
        if type(item) is not int and type(item) is not str and (type(item) is bool or not isinstance(item, (int, str))):
            raise WireError(f"a key may hold only ints and strings (key: {key!r})")


def _layout_fields(block: Any) -> Sequence[Any]:
    if type(block) is not list or len(block) != 2 or type(block[1]) is not list:
        raise WireError(f"a block is not [dtype, shape] (got: {block!r})")
    return block


def _checked_bytes(dtype: Any, shape: Sequence[Any], limits: WireLimits) -> int:
    """The bytes of an array of this dtype and shape. Raises WireError if they are invalid or exceed a limit."""
    if type(dtype) is not str or dtype not in SIZES:
        raise WireError(f"unknown dtype {dtype!r}; known: {', '.join(SIZES)}")
    if len(shape) > limits.dims:
        raise _over_limit("dimensions", len(shape), limits.dims)
    nbytes = most = SIZES[dtype]
    for size in shape:
        if type(size) is not int or size < 0:
            raise WireError(f"a shape may hold only sizes from 0 up (shape: {shape!r})")
        nbytes *= size
        most *= size or 1  # zeros count as ones: numpy refuses (0, 2**62) too
    if most > limits.body:
        raise _over_limit("bytes of a block", most, limits.body)
    return nbytes


def _over_limit(what: str, value: int, most: int) -> WireError:
    return WireError(f"too many {what} (got: {value}, limit: {most})")
