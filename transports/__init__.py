"""Frames between ranks: open a transport by its URL, then send and receive addressed messages or bare buffers.

Beside the wire lie the codecs: `pack` makes arrays smaller, and `unpack` believes nothing of what it is given.
"""

from transports._blocks import Block, wire_name
from transports._codecs import MOST_BYTES, Codec, Packed, codec_names, find_codec, pack, unpack
from transports._contract import Frame, Key, Traffic, Transport
from transports._errors import (
    AuthenticationError,
    Closed,
    PeerAborted,
    PeerLost,
    RendezvousError,
    SizeMismatch,
    TransportError,
    WireError,
)
from transports._loop import new_event_loop
from transports._nursery import Nursery
from transports._open import open_local, open_transport, read_url, schemes
from transports._wire import Layout, parse_layout

__all__ = [
    "MOST_BYTES",
    "AuthenticationError",
    "Block",
    "Closed",
    "Codec",
    "Frame",
    "Key",
    "Layout",
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
