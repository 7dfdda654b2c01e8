"""The sequences of each step, and those that an evaluation scores.

The sequences of step t depend on (seed, t, global batch size) alone, never on the cut of the batch. Arrays of token ids
are numpy; this file needs no torch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from apps.common.lm.data.masking import IGNORED
from pipelined.api.data.tokens.mapped import MappedTokens, Tokens, spans_of
from pipelined.errors import UsageError
from pipelined.random.permutation import KeyedPermutation

Rows = tuple[np.ndarray, np.ndarray]
"""Inputs and targets, int64, each (B, T); the targets are the inputs one token later."""


@dataclass
class Batches:
    """The training sequences, step by step.

    In every epoch the text is cut into sequences of T tokens from a keyed offset, and each is used once, in a keyed
    order; a batch may straddle two epochs. The order of tokens in memory is drawn, an array as long as the epoch; the
    order of tokens in files is a `KeyedPermutation`, of which nothing is kept.

    Args:
        tokens: the training ids, one-dimensional.
        sequence: T.
        batch: B, sequences a microbatch.
        microbatches: how many microbatches a step has in all, N·W.
        seed: the run's.
    Raises:
        UsageError: an epoch would hold less than one batch.
    """

    tokens: Tokens
    sequence: int
    batch: int
    microbatches: int
    seed: int

    def __post_init__(self) -> None:
        row = row_of(self.tokens, self.sequence)
        # unpacked text keeps one sequence free, for the offset and the last target
        self.epoch_sequences = len(self.tokens) // row if row else len(self.tokens) // self.sequence - 1
        self._epoch = -1
        self._offset = 0
        self._order: np.ndarray | KeyedPermutation = np.empty(0, np.int64)
        if self.epoch_sequences < self.global_batch:
            required_tokens = self.global_batch * row if row else (self.global_batch + 1) * self.sequence
            fact = f"too little text for one batch (tokens: {len(self.tokens)}, needed: {required_tokens})"
            raise UsageError(f"{fact}; give more --data, or lower --batch{'' if row else ' or --seq'}")

    @property
    def global_batch(self) -> int:
        """Sequences a step, B·N·W."""
        return self.batch * self.microbatches

    def rows(self, step: int, microbatch: int) -> Rows:
        """The sequences of one global microbatch (0 … N·W-1) of a step."""
        first_sequence = step * self.global_batch + microbatch * self.batch
        starts = np.array([self._start(first_sequence + row) for row in range(self.batch)])
        return windows_at(self.tokens, starts, self.sequence)

    def _start(self, number: int) -> int:
        """Where the sequence of this number, counted from the run's beginning, starts in the text."""
        epoch, place = divmod(number, self.epoch_sequences)
        if epoch != self._epoch:
            key = _key(self.seed, epoch)
            self._epoch = epoch
            draw = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
            self._stride = row_of(self.tokens, self.sequence) or self.sequence
            self._offset = int(draw.integers(self.sequence)) if self._stride == self.sequence else 0
            is_mapped = isinstance(self.tokens, MappedTokens)
            count = self.epoch_sequences
            self._order = KeyedPermutation(count, key) if is_mapped else draw.permutation(count)
        return self._offset + self._stride * int(self._order[place])


def row_of(tokens: Tokens, sequence: int) -> int:
    """Tokens of a row of packed documents, a sequence and one; 0 where documents follow one another.

    Raises:
        UsageError: they were packed for sequences of another length.
    """
    row = tokens.row if isinstance(tokens, MappedTokens) else 0
    if row not in (0, sequence + 1):
        fact = f"the documents are packed for other sequences (--seq {sequence}, packed: {row - 1})"
        raise UsageError(f"{fact}; take --seq {row - 1}")
    return row


def windows_at(tokens: Tokens, starts: np.ndarray, sequence: int) -> Rows:
    """The inputs and targets from each start; a target of packed documents that does not count is `IGNORED`."""
    spans = spans_of(tokens, starts, sequence + 1).astype(np.int64)  # (B, T+1)
    inputs = spans[:, :-1]
    targets = spans[:, 1:]
    if isinstance(tokens, MappedTokens) and tokens.row:
        targets = np.where(tokens.mask.spans(starts, sequence + 1)[:, 1:], targets, IGNORED)
    return inputs, targets


def _key(seed: int, epoch: int) -> bytes:
    return hashlib.blake2b(f"epoch {seed} {epoch}".encode(), digest_size=16).digest()


def validation_windows(tokens: Tokens, sequence: int, limit: int = 0) -> Rows:
    """The non-overlapping windows that are scored; the last partial one is dropped.

    Args:
        tokens: the validation ids, one-dimensional.
        limit: score at most this many windows, at even distances; 0: all.
    Returns: inputs and targets, each (windows, T).
    Raises:
        UsageError: there is not one whole window.
    """
    windows = count_windows(tokens, sequence)
    if windows < 1:
        raise UsageError(
            f"too little validation text for one window (tokens: {len(tokens)}, needed: {sequence + 1}); "
            "give more --data or lower --seq"
        )
    count = min(windows, limit) if limit else windows
    stride = row_of(tokens, sequence) or sequence
    return windows_at(tokens, np.arange(count) * windows // count * stride, sequence)


def count_windows(tokens: Tokens, sequence: int) -> int:
    """The whole windows that could be scored. Raises UsageError: as `row_of`."""
    row = row_of(tokens, sequence)
    return len(tokens) // row if row else max(0, len(tokens) - 1) // sequence
