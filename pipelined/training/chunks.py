"""Large tensors in chunks, so that one is coded, the next sent and a third decoded at once.

    key                         the first chunk; its note: ["chunks", dtype, shape, the codec's header]
    ("chunk", i, *key)          the i-th of the others, packed as any message

The one rule: both ends cut alike by dtype and shape alone, which the receiver checks before it takes memory. A chunk is
a whole number of the codecs' own blocks wherever those are powers of two, so that cutting changes no number. Knows no
transport and no stages.
"""

from collections.abc import Sequence
from typing import Any

from transports import MOST_BYTES, Block, Key, Layout, WireError, parse_layout

CHUNK_BYTES = 1 << 20
"""Of the plain tensor; coding so much takes longer than a message costs, and fits a core's cache."""
CHUNKS = "chunks"


def cut(block: Block) -> list[Block]:
    """Flat views of a block that has more than a chunk, in order; else the block itself."""
    if block.nbytes <= CHUNK_BYTES:
        return [block]
    item = Layout(block.dtype, (1,)).nbytes
    starts = range(0, block.nbytes, CHUNK_BYTES)
    views = (block.data[start : start + CHUNK_BYTES] for start in starts)
    return [Block(block.dtype, (view.nbytes // item,), view) for view in views]


def key_of(key: Key, place: int) -> Key:
    """The address of a chunk."""
    return ("chunk", place, *key) if place else key


def note_of(block: Block, place: int, header: Any) -> Any:
    """What a chunk's message says: the codec's header, and with the first of many the whole's layout."""
    many = not place and block.nbytes > CHUNK_BYTES
    return [CHUNKS, block.dtype, list(block.shape), header] if many else header


def opened(note: Any) -> tuple[Block | None, Any]:
    """The memory of the tensor that this message begins, or None where it is all of it; and the codec's header.

    Raises:
        WireError: the layout is none, of more bytes than a packed message may have, or of no more than a chunk.
    """
    match note:
        case [str(kind), dtype, shape, header] if kind == CHUNKS:
            layout = parse_layout([dtype, shape])
        case _:
            return None, note
    if not CHUNK_BYTES < layout.nbytes <= MOST_BYTES:
        limits = f"bytes: {layout.nbytes}, from {CHUNK_BYTES + 1} to {MOST_BYTES}"
        raise WireError(f"a tensor in chunks that would not be cut so ({limits}); install one release on every rank")
    return Block.empty(layout.dtype, layout.shape), header


def fill(chunk: Block, decoded: Sequence[Block]) -> None:
    """Put what was decoded where it belongs.

    Raises:
        WireError: it is no such chunk.
    """
    found = [(block.dtype, block.shape) for block in decoded]
    if found != [(chunk.dtype, chunk.shape)]:
        raise WireError(f"another chunk than was due (due: {chunk.dtype} {chunk.shape}, came: {found})")
    chunk.data[:] = decoded[0].data
