"""A stage's state on its way to a joiner: cut into chunks that bear hashes, taken in any order from anybody.

    manifest = describe(state)                        # the donor's; its root names the state
    wire = manifest.digests, manifest.root            # a block of bytes, and 32 bytes

    manifest = expect(layout, digests, root)          # the joiner's, checked against what its own stage holds
    download = Download(manifest)
    download.add(index, parts)                        # parts = cut(state, manifest, index), from any donor of the root
    download.finish()                                 # the state, once nothing is missing

The one rule: what is believed of a donor is only what the hashes bear out; names, dtypes and shapes are the joiner's
own, so no size comes off the network. A state is one run of bytes, tensor after tensor in the order of names, and a
chunk is `CHUNK` bytes of it. Knows no torch, no peer and no message.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

from transports import Block
from transports.wire.arrays import SIZES

CHUNK = 4 << 20
"""Bytes of every chunk but the last."""
MOST_PARTS = 64
"""Blocks that one message may have."""
DIGEST = 32
"""Bytes of a blake2b-256."""

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of every tensor, by name."""


class TransferError(Exception):
    """A chunk, a manifest or a state that is not what it was said to be; nothing was taken over."""


@dataclass(frozen=True)
class Manifest:
    """What a state consists of.

    Args:
        layout: of its tensors.
        digests: the blake2b-256 of each chunk, one after another.
        chunk: bytes of every chunk but the last.
    """

    layout: Layout
    digests: bytes
    chunk: int = CHUNK

    @cached_property
    def names(self) -> list[str]:
        """In the order in which their bytes follow one another."""
        return sorted(self.layout)

    @cached_property
    def nbytes(self) -> int:
        """Of the whole state."""
        return self._ends[-1] if self._ends else 0

    @property
    def chunks(self) -> int:
        return len(self.digests) // DIGEST

    @cached_property
    def root(self) -> bytes:
        """The blake2b-256 of everything: two states with one root are equal, names, shapes and bytes."""
        hasher = hashlib.blake2b(repr([self.chunk, self._listing]).encode(), digest_size=DIGEST)
        hasher.update(self.digests)
        return hasher.digest()

    def digest(self, index: int) -> bytes:
        """Of one chunk."""
        return self.digests[index * DIGEST : (index + 1) * DIGEST]

    def size(self, index: int) -> int:
        """Bytes of one chunk."""
        return min(self.chunk, self.nbytes - index * self.chunk)

    def spans(self, index: int) -> Iterator[tuple[str, slice]]:
        """Which bytes of which tensors a chunk consists of."""
        at, end = index * self.chunk, index * self.chunk + self.size(index)
        place = bisect_right(self._ends, at)
        while at < end:
            start = self._ends[place - 1] if place else 0
            until = min(end, self._ends[place])
            if until > at:
                yield self.names[place], slice(at - start, until - start)
            at, place = until, place + 1

    @cached_property
    def _ends(self) -> list[int]:
        """Where each tensor's bytes end in the run of all."""
        return list(accumulate(_nbytes(*self.layout[name]) for name in self.names))

    @property
    def _listing(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, dtype, tuple(shape)) for name, (dtype, shape) in sorted(self.layout.items())]


def layout_of(state: Mapping[str, Any]) -> Layout:
    """Dtype and shape of every tensor of a state."""
    blocks = {name: Block.of(value) for name, value in state.items()}
    return {name: (block.dtype, block.shape) for name, block in blocks.items()}


def describe(state: Mapping[str, Any], chunk: int = CHUNK) -> Manifest:
    """Make the manifest of a state (anything that `Block.of` views).

    Cost: one pass over its bytes.
    """
    blocks = {name: Block.of(value) for name, value in state.items()}
    sizes = Manifest({name: (block.dtype, block.shape) for name, block in blocks.items()}, b"", chunk)
    count = -(-sizes.nbytes // chunk)
    digests = b"".join(_hash(_views(blocks, sizes, index)) for index in range(count))
    return Manifest(sizes.layout, digests, chunk)


def expect(layout: Layout, digests: Any, root: Any, chunk: int = CHUNK) -> Manifest:
    """Make the manifest of a state that others have, of what they say of it.

    Args:
        layout: of this process's own state, which is of the same stage.
        digests: bytes off the network.
        root: which state it must be; off the network, or as the stage agreed on it.
    Raises:
        TransferError: these are not the digests of a state of this layout with this root.
    """
    digests = bytes(digests.data) if isinstance(digests, Block) else digests
    if not isinstance(digests, bytes) or not isinstance(root, bytes):
        raise TransferError(f"a manifest of no bytes (digests: {type(digests).__name__}, root: {type(root).__name__})")
    sizes = Manifest(layout, b"", chunk)
    count = -(-sizes.nbytes // chunk)
    if len(digests) != count * DIGEST:
        fact = f"a manifest of another state (digests: {len(digests)} bytes, chunks here: {count})"
        raise TransferError(f"{fact}; ask a peer of the same stage and model")
    manifest = Manifest(layout, digests, chunk)
    if manifest.root != root:
        raise TransferError(f"a manifest of another state (root: {manifest.root.hex()}, expected: {root.hex()})")
    return manifest


def cut(state: Mapping[str, Any], manifest: Manifest, index: Any) -> tuple[Block, ...]:
    """One chunk of a state, as views of its tensors; more than one where tensors end within it.

    Of a small model a chunk holds more tensors than one message can bring; then it is copied into one run of bytes.

    Raises:
        TransferError: there is no such chunk.
    """
    _refuse_no_chunk(manifest, index)
    named = {name: Block.of(state[name]) for name, _ in manifest.spans(index)}
    views = _views(named, manifest, index)
    return tuple(map(Block.of, views if len(views) <= MOST_PARTS else [memoryview(bytearray().join(views))]))


class Download:
    """A state that is being put together.

    Args:
        manifest: of what it is to be.

    Attributes:
        missing: the chunks that are still to come, ascending.

    Cost: memory for the whole state from the start.
    """

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self.missing = dict.fromkeys(range(manifest.chunks))
        self._blocks = {name: Block.empty(dtype, tuple(shape)) for name, (dtype, shape) in manifest.layout.items()}

    @property
    def whole(self) -> bool:
        return not self.missing

    def add(self, index: Any, parts: Sequence[Block]) -> bool:
        """Take one chunk over; False where it was here already.

        Raises:
            TransferError: no such chunk, or not its bytes; it is still missing.
        """
        _refuse_no_chunk(self.manifest, index)
        if index not in self.missing:
            return False
        views = [part.data for part in parts]
        size = sum(view.nbytes for view in views)
        if size != self.manifest.size(index):
            raise TransferError(f"chunk {index} of another size (bytes: {size}, expected: {self.manifest.size(index)})")
        found, wanted = _hash(views), self.manifest.digest(index)
        if found != wanted:
            raise TransferError(
                f"chunk {index} is not the one asked for (hash: {found.hex()}, expected: {wanted.hex()})"
            )
        _fill(_views(self._blocks, self.manifest, index), views)
        del self.missing[index]
        return True

    def finish(self) -> dict[str, Block]:
        """The state.

        Raises:
            TransferError: chunks are missing.
        """
        if self.missing:
            count, first = len(self.missing), next(iter(self.missing))
            raise TransferError(
                f"a state that is not whole (missing: {count} of {self.manifest.chunks}, first: {first})"
            )
        return self._blocks


def _views(blocks: Mapping[str, Block], manifest: Manifest, index: int) -> list[memoryview]:
    return [blocks[name].data[span] for name, span in manifest.spans(index)]


def _hash(views: Sequence[memoryview]) -> bytes:
    hasher = hashlib.blake2b(digest_size=DIGEST)
    for view in views:
        hasher.update(view)
    return hasher.digest()


def _fill(targets: Sequence[memoryview], parts: Sequence[memoryview]) -> None:
    """Copy parts into targets; both are the same number of bytes, parted in different ways."""
    places = iter(targets)
    room = next(places, memoryview(b""))
    for part in parts:
        while part.nbytes:
            while not room.nbytes:
                room = next(places)
            step = min(room.nbytes, part.nbytes)
            room[:step] = part[:step]
            room, part = room[step:], part[step:]


def _refuse_no_chunk(manifest: Manifest, index: Any) -> None:
    if type(index) is not int or not 0 <= index < manifest.chunks:
        raise TransferError(f"there is no such chunk (asked for: {index!r:.40}, chunks: {manifest.chunks})")


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return prod(shape) * SIZES[dtype]
