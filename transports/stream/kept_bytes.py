"""The memory that a received message takes until it is consumed, by which receivers limit what they keep.

Headers count: many empty messages take memory too. Both ends of a connection compute the same number.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from transports.wire.frames import Header, Key

FRAME_BYTES = 2 << 10  # a message without arrays and note, or a buffer, in a mailbox (measured: 1.6 and 1.4 KiB)
BLOCK_BYTES = 768  # an array without its bytes (measured: 736)
ITEM_BYTES = 128  # a value unpacked by msgpack, without a text's characters (measured: 99, in dicts of one item)


class Shaped(Protocol):
    """An array, or the layout of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size in each dimension."""


def header_memory(key: Key, note: Any, layouts: Sequence[Shaped]) -> int:
    """The most bytes that a message takes in memory, without the bytes of its arrays.

    Args:
        note: a value that the wire carries; packing and unpacking it by msgpack does not change the result.
    """
    chars, values = 0, [*key, note]
    for value in values:  # the list grows during the loop
        if value is None or type(value) is int:
            continue
        if isinstance(value, str):
            chars += len(value) if value.isascii() else 4 * len(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            chars += memoryview(value).nbytes
        elif isinstance(value, dict):
            values += value
            values += value.values()
        elif isinstance(value, (list, tuple)):
            values += value
    items = len(values) + sum([len(layout.shape) for layout in layouts])
    return FRAME_BYTES + BLOCK_BYTES * len(layouts) + ITEM_BYTES * items + chars


def kept_bytes(header: Header) -> int:
    """The most bytes that the message with this header takes in memory."""
    return header.nbytes + header_memory(header.key, header.note, header.layouts)
