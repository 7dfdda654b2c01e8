"""Token ids in files that are larger than memory. No torch."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from pipelined.errors import UsageError

SAMPLES, SAMPLE_TOKENS = 64, 2048
"""The places of all tokens that `sample` reads, and the tokens that it reads at each."""


@dataclass(frozen=True)
class MappedTokens:
    """The ids of several files, one after another, or a part of them.

    Each span is mapped only while it is copied: pages that stay mapped would count as this process's memory.

    Args:
        files: each file's path and its number of tokens.
        dtype: of the ids, uint16 or uint32; little-endian in the files.
        first_token: the token of the files that this part begins with.
        count: the tokens of this part.
        row: tokens of the rows into which documents are packed; 0: they follow one another.
        masks: files of packed documents, with a byte a token: whether it counts as a target.
    """

    files: tuple[tuple[Path, int], ...]
    dtype: np.dtype[Any]
    first_token: int
    count: int
    row: int = 0
    masks: tuple[tuple[Path, int], ...] = ()

    @classmethod
    def open(
        cls, files: list[tuple[Path, int]], dtype: str, row: int = 0, masks: Sequence[tuple[Path, int]] = ()
    ) -> "MappedTokens":
        """All tokens of some files.

        Raises:
            UsageError: a file cannot be read, or has another size.
        """
        kind = np.dtype(dtype).newbyteorder("<")
        for path, tokens in files:
            _require_size(path, tokens * kind.itemsize)
        for path, tokens in masks:
            _require_size(path, tokens)
        return cls(tuple(files), kind, 0, sum(tokens for _, tokens in files), row, tuple(masks))

    @property
    def mask(self) -> "MappedTokens":
        """Whether each token of packed documents counts as a target: 1 or 0."""
        return MappedTokens(self.masks, np.dtype(np.uint8), self.first_token, self.count)

    def __len__(self) -> int:
        return self.count

    def part(self, start: int, stop: int) -> "MappedTokens":
        """The tokens from `start` up to `stop`."""
        return replace(self, first_token=self.first_token + start, count=stop - start)

    def spans(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The `length` tokens from each start, (starts, length); a span may lie in two files."""
        if not length or not len(starts):
            return np.empty((len(starts), length), self.dtype)
        return np.stack([np.concatenate(list(self._pieces(self.first_token + int(start), length))) for start in starts])

    def sample(self) -> np.ndarray:
        """Some tokens from evenly spaced places, for checks that must not read everything; all, if there are few."""
        if len(self) <= SAMPLES * SAMPLE_TOKENS:
            return self.spans(np.zeros(1, np.int64), len(self)).ravel()
        return self.spans(np.linspace(0, len(self) - SAMPLE_TOKENS, SAMPLES).astype(np.int64), SAMPLE_TOKENS).ravel()

    def digest(self) -> str:
        """A digest of the number of tokens, their type, and what `sample` reads; not of every token."""
        hasher = hashlib.blake2b(f"{self.dtype.name} {len(self)}".encode(), digest_size=16)
        hasher.update(self.sample().tobytes())
        return hasher.hexdigest()

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(tokens for _, tokens in self.files))

    def _pieces(self, start: int, length: int) -> Iterator[np.ndarray]:
        stop = start + length
        while start < stop:
            index = bisect_right(self._ends, start)
            path, tokens = self.files[index]
            offset = start - (self._ends[index] - tokens)
            count = min(stop - start, tokens - offset)
            yield np.array(np.memmap(path, self.dtype, "r", offset * self.dtype.itemsize, (count,)))
            start += count


Tokens = np.ndarray | MappedTokens
"""Token ids, one-dimensional: in memory, or in files."""


def spans_of(tokens: Tokens, starts: np.ndarray, length: int) -> np.ndarray:
    """The `length` tokens from each start, (starts, length)."""
    if isinstance(tokens, MappedTokens):
        return tokens.spans(starts, length)
    return tokens[starts[:, None] + np.arange(length)]


def _require_size(path: Path, size: int) -> None:
    try:
        length = path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read the tokens {path} ({error.strerror}); every rank needs this file") from error
    if length != size:
        kind = "truncated" if length < size else "longer than its index says"
        raise UsageError(f"the shard {path} is {kind} (bytes: {length}, expected: {size}); write the tokens again")
