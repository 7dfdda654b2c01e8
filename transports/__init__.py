"""Frames between ranks: open a transport by its URL, then send and receive addressed messages or bare buffers.

Also the codecs: `pack` makes arrays smaller, and `unpack` checks every field of its input.
"""

from transports.aio.event_loop import new_event_loop
from transports.aio.nursery import Nursery
from transports.base import Message, Transport
from transports.codecs import MAX_PACKED_BYTES, Codec, Packed, codec_names, find_codec, pack, unpack
from transports.errors import (
    AuthenticationError,
    Closed,
    PeerAborted,
    PeerLost,
    RendezvousError,
    SizeMismatch,
    TransportError,
    WireError,
)
from transports.registry import open_local, open_transport, read_url, schemes
from transports.state import Traffic
from transports.wire.arrays import ArrayType, Block, wire_name
from transports.wire.frames import Key, parse_layout

__all__ = [
    "MAX_PACKED_BYTES",
    "ArrayType",
    "AuthenticationError",
    "Block",
    "Closed",
    "Codec",
    "Key",
    "Message",
    "Nursery",
    "Packed",
    "PeerAborted",
    "PeerLost",
    "RendezvousError",
    "SizeMismatch",
    "Traffic",
    "Transport",
    "TransportError",
    "WireError",
    "codec_names",
    "find_codec",
    "new_event_loop",
    "open_local",
    "open_transport",
    "pack",
    "parse_layout",
    "read_url",
    "schemes",
    "unpack",
    "wire_name",
]
