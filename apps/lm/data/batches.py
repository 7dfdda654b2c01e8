"""Which sequences make up a step, and which are scored in an evaluation.

The sequences of step t depend on (seed, t, global batch size) alone, never on the cut of the batch. Arrays of token ids
are numpy; this file needs no torch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from pipelined.errors import UsageError

Rows = tuple[np.ndarray, np.ndarray]
"""Inputs and targets, int64, each (B, T); the targets are the inputs one token later."""


@dataclass
class Batches:
    """The training sequences, step by step.

    In every epoch the text is cut into sequences of T tokens from a keyed offset, and each is used once, in a keyed
    order; a batch may straddle two epochs.

    Args:
        tokens: the training ids, one-dimensional.
        sequence: T.
        batch: B, sequences a microbatch.
        microbatches: how many microbatches a step has in all, N·W.
        seed: the run's.
    Raises:
        UsageError: an epoch would hold less than one batch.
    """

    tokens: np.ndarray
    sequence: int
    batch: int
    microbatches: int
    seed: int

    def __post_init__(self) -> None:
        self.epoch_sequences = len(self.tokens) // self.sequence - 1  # one less: room for the offset and last target
        self._epoch, self._starts = -1, np.empty(0, np.int64)
        if self.epoch_sequences < self.global_batch:
            raise UsageError(
                f"too little text for one batch (tokens: {len(self.tokens)}, needed: "
                f"{(self.global_batch + 1) * self.sequence}); give more --data, or lower --microbatches or --seq"
            )

    @property
    def global_batch(self) -> int:
        """Sequences a step, B·N·W."""
        return self.batch * self.microbatches

    def rows(self, step: int, microbatch: int) -> Rows:
        """The sequences of one global microbatch (0 … N·W-1) of a step."""
        first = step * self.global_batch + microbatch * self.batch
        starts = np.array([self._start(first + row) for row in range(self.batch)])
        spans = starts[:, None] + np.arange(self.sequence + 1)  # (B, T+1)
        taken = self.tokens[spans].astype(np.int64)
        return taken[:, :-1], taken[:, 1:]

    def _start(self, number: int) -> int:
        """Where the sequence of this number, counted from the run's beginning, starts in the text."""
        epoch, place = divmod(number, self.epoch_sequences)
        if epoch != self._epoch:
            draw = np.random.Generator(np.random.Philox(_key(self.seed, epoch)))
            offset = draw.integers(self.sequence)
            self._starts = offset + self.sequence * draw.permutation(self.epoch_sequences)
            self._epoch = epoch
        return int(self._starts[place])


def _key(seed: int, epoch: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"epoch {seed} {epoch}".encode(), digest_size=16).digest(), "little")


def validation_windows(tokens: np.ndarray, sequence: int) -> Rows:
    """The non-overlapping windows that are scored, as views of the tokens; the last partial one is dropped.

    Args:
        tokens: the validation ids, one-dimensional.
    Returns: inputs and targets, each (windows, T), of the tokens' dtype.
    Raises:
        UsageError: there is not one whole window.
    """
    windows = (len(tokens) - 1) // sequence
    if windows < 1:
        raise UsageError(
            f"too little validation text for one window (tokens: {len(tokens)}, needed: {sequence + 1}); "
            "give more --data or lower --seq"
        )
    used = windows * sequence
    return tokens[:used].reshape(windows, sequence), tokens[1 : used + 1].reshape(windows, sequence)
