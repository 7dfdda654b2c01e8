"""Masked tokens: which of a sequence a model has to guess, and what it sees in their places. No torch.

Every draw is keyed by the number of the sequence, so it does not depend on the cut of a batch.
Source: Devlin et al., BERT, section 3.1, task 1.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

SHARE = 0.15
"""Of the tokens of a sequence, those that are guessed."""
MASKED, REPLACED = 0.8, 0.1
"""Of these, the share that is seen as the mask, and the share that is seen as any token; the rest is seen as it is."""
IGNORED = -100
"""A target that no loss counts, as torch and Hugging Face have it."""


@dataclass(frozen=True)
class Masking:
    """Masks the tokens of sequences.

    Args:
        seed: of the draws.
        symbols: of the tokenizer; any of them can replace a token.
        mask: the id of the mask.
    """

    seed: int
    symbols: int
    mask: int

    def masked(self, ids: np.ndarray, kind: str, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, each (B, T).

        As many tokens of each sequence are guessed, `SHARE` of them and at least one; so a mean over a microbatch
        weighs all of its sequences alike.

        Args:
            ids: (B, T).
            kind: the beginning of the key of the draws: what is trained on draws others than what is held out.
            first: the number of the first sequence.
        """
        inputs = ids.astype(np.int64)
        targets = np.full(ids.shape, IGNORED, np.int64)
        for row in range(len(ids)):
            draw = np.random.Generator(np.random.Philox(_key(self.seed, kind, first + row)))
            guessed = draw.permutation(ids.shape[1])[: max(1, round(SHARE * ids.shape[1]))]
            targets[row, guessed] = ids[row, guessed]
            chance = draw.random(len(guessed))
            others = draw.integers(self.symbols, size=len(guessed))
            inputs[row, guessed[chance < MASKED]] = self.mask
            replaced = (chance >= MASKED) & (chance < MASKED + REPLACED)
            inputs[row, guessed[replaced]] = others[replaced]
        return inputs, targets


def _key(seed: int, kind: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {seed} {number}".encode(), digest_size=16).digest(), "little")
