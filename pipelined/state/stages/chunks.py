"""Manifests and chunks: a stage's state is cut into hashed chunks, which can come in any order from any donor.

    manifest = describe(state)                        # the donor's; its root names the state
    wire = manifest.digests, manifest.root            # a block of bytes, and 32 bytes

    manifest = expect(specs, digests, root)           # the joiner's, checked against what its own stage holds
    download = Download(manifest)
    download.add(index, parts)                        # chunk_of(state, manifest, index), from any donor of the root
    download.finish()                                 # the state, once nothing is missing

The joining peer accepts only chunks that match their hashes. With `expect` names, dtypes and shapes come from its own
stage, so it allocates no size that a donor sent; a receiver that unpacks a manifest must bound its bytes itself. A
state is one run of bytes, tensor after tensor in the order of names, and a chunk is `CHUNK` bytes of it. This file
needs no torch, no peers and no messages.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import msgpack

from pipelined.state.tensor_specs import TensorSpecs
from transports import Block
from transports.wire.arrays import SIZES

CHUNK = 4 << 20
"""Bytes of every chunk but the last."""
MAX_PARTS = 64
"""Upper limit of blocks in one message."""
DIGEST = 32
"""Bytes of a blake2b-256 digest."""


class TransferError(Exception):
    """A received chunk, manifest or state does not match what was requested; nothing of it was used."""


@dataclass(frozen=True)
class Manifest:
    """What the tensors of a state are, and the digests of its chunks.

    Args:
        specs: of the tensors.
        digests: the blake2b-256 of each chunk, one after another.
        chunk: bytes of every chunk but the last.
    """

    specs: TensorSpecs
    digests: bytes
    chunk: int = CHUNK

    @cached_property
    def names(self) -> list[str]:
        """Names of the tensors, in the order of their bytes."""
        return sorted(self.specs)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the whole state."""
        return self._ends[-1] if self._ends else 0

    @property
    def chunks(self) -> int:
        return len(self.digests) // DIGEST

    @cached_property
    def root(self) -> bytes:
        """The blake2b-256 of specs and digests: states with equal roots have equal names, shapes and bytes."""
        hasher = hashlib.blake2b(repr([self.chunk, self._listing]).encode(), digest_size=DIGEST)
        hasher.update(self.digests)
        return hasher.digest()

    def pack(self) -> bytes:
        """The manifest on the wire, for a receiver without the same stage."""
        return bytes(msgpack.packb([self._listing, self.digests, self.chunk]))

    @classmethod
    def unpack(cls, packed: Any) -> "Manifest":
        """The inverse of `pack`. Raises TransferError: these bytes are no manifest."""
        try:
            listing, digests, chunk = msgpack.unpackb(packed)
            manifest = cls({name: (dtype, tuple(shape)) for name, dtype, shape in listing}, digests, chunk)
            shapes = [shape for _, shape in manifest.specs.values()]
            if any(type(size) is not int or size < 0 for shape in [*shapes, (chunk,)] for size in shape):
                raise ValueError("a size that is not a whole number from 0 up")
            if type(digests) is not bytes or any(type(name) is not str for name in manifest.specs):
                raise TypeError("names must be text, and digests bytes")
            count = -(-manifest.nbytes // chunk)
        except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
            raise TransferError(f"these bytes are no manifest ({type(error).__name__}: {error})") from error
        if count != manifest.chunks:
            raise TransferError(f"a manifest without a digest of each chunk ({manifest.chunks} of {count})")
        return manifest

    def digest(self, index: int) -> bytes:
        """The digest of one chunk."""
        return self.digests[index * DIGEST : (index + 1) * DIGEST]

    def size(self, index: int) -> int:
        """Bytes of one chunk."""
        return min(self.chunk, self.nbytes - index * self.chunk)

    def spans(self, index: int) -> Iterator[tuple[str, slice]]:
        """The names of the tensors in a chunk, and the slice of each tensor's bytes."""
        position = index * self.chunk
        end = index * self.chunk + self.size(index)
        tensor_index = bisect_right(self._ends, position)
        while position < end:
            start = self._ends[tensor_index - 1] if tensor_index else 0
            until = min(end, self._ends[tensor_index])
            if until > position:
                yield self.names[tensor_index], slice(position - start, until - start)
            position, tensor_index = until, tensor_index + 1

    @cached_property
    def _ends(self) -> list[int]:
        """The offset at which the bytes of each tensor end."""
        return list(accumulate(_nbytes(*self.specs[name]) for name in self.names))

    @property
    def _listing(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, dtype, tuple(shape)) for name, (dtype, shape) in sorted(self.specs.items())]


def describe(state: Mapping[str, Any], chunk: int = CHUNK) -> Manifest:
    """Compute the manifest of a state; its values are anything that `Block.of` views.

    Cost: one pass over its bytes.
    """
    blocks = {name: Block.of(value) for name, value in state.items()}
    sizes = Manifest({name: (block.dtype, block.shape) for name, block in blocks.items()}, b"", chunk)
    count = -(-sizes.nbytes // chunk)
    digests = b"".join(_hash(_views(blocks, sizes, index)) for index in range(count))
    return Manifest(sizes.specs, digests, chunk)


def expect(specs: TensorSpecs, digests: bytes, root: bytes, chunk: int = CHUNK) -> Manifest:
    """Make the manifest of a donor's state from the digests and the root that it sent.

    Args:
        specs: of this process's own state of the same stage.
        digests: from the network.
        root: of the expected state, from the network or agreed on by the stage.
    Raises:
        TransferError: these are not the digests of a state of these specs with this root.
    """
    sizes = Manifest(specs, b"", chunk)
    count = -(-sizes.nbytes // chunk)
    if len(digests) != count * DIGEST:
        fact = f"a manifest of another state (digests: {len(digests)} bytes, chunks here: {count})"
        raise TransferError(f"{fact}; ask a peer of the same stage and model")
    manifest = Manifest(specs, digests, chunk)
    if manifest.root != root:
        raise TransferError(f"a manifest of another state (root: {manifest.root.hex()}, expected: {root.hex()})")
    return manifest


def chunk_of(state: Mapping[str, Any], manifest: Manifest, index: Any) -> tuple[Block, ...]:
    """One chunk of a state, as one view of each tensor in it.

    A chunk of a small model may hold more tensors than one message may have blocks; then the chunk is copied into one
    block.

    Raises:
        TransferError: there is no such chunk.
    """
    _refuse_no_chunk(manifest, index)
    blocks = {name: Block.of(state[name]) for name, _ in manifest.spans(index)}
    views = _views(blocks, manifest, index)
    return tuple(map(Block.of, views if len(views) <= MAX_PARTS else [memoryview(bytearray().join(views))]))


class Download:
    """A state that is assembled from received chunks.

    Args:
        manifest: of the complete state.

    Attributes:
        missing: indices of the missing chunks, ascending.

    Cost: memory for the whole state from the start.
    """

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self.missing = dict.fromkeys(range(manifest.chunks))
        self._blocks = {name: Block.empty(dtype, tuple(shape)) for name, (dtype, shape) in manifest.specs.items()}

    def add(self, index: Any, parts: Sequence[Block]) -> bool:
        """Check and copy one chunk; returns False if it was not missing.

        Raises:
            TransferError: no such chunk, or wrong bytes; the chunk is still missing.
        """
        _refuse_no_chunk(self.manifest, index)
        if index not in self.missing:
            return False
        views = [part.data for part in parts]
        size = sum(view.nbytes for view in views)
        if size != self.manifest.size(index):
            raise TransferError(f"chunk {index} of another size (bytes: {size}, expected: {self.manifest.size(index)})")
        digest = _hash(views)
        expected_digest = self.manifest.digest(index)
        if digest != expected_digest:
            raise TransferError(
                f"chunk {index} is not the one asked for (hash: {digest.hex()}, expected: {expected_digest.hex()})"
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
            count = len(self.missing)
            first_index = next(iter(self.missing))
            raise TransferError(
                f"a state that is not whole (missing: {count} of {self.manifest.chunks}, first: {first_index})"
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
    """Copy parts into targets; both have the same number of bytes in all, divided differently."""
    target_views = iter(targets)
    free_view = next(target_views, memoryview(b""))
    for part in parts:
        while part.nbytes:
            while not free_view.nbytes:
                free_view = next(target_views)
            step = min(free_view.nbytes, part.nbytes)
            free_view[:step] = part[:step]
            free_view, part = free_view[step:], part[step:]


def _refuse_no_chunk(manifest: Manifest, index: Any) -> None:
    if type(index) is not int or not 0 <= index < manifest.chunks:
        raise TransferError(f"there is no such chunk (asked for: {index!r:.40}, chunks: {manifest.chunks})")


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return prod(shape) * SIZES[dtype]
