"""Masked tokens: which of a sequence a model has to guess, and what it sees in their places. No torch.

Every draw is keyed by the number of the sequence, so it does not depend on the cut of a batch.
Source: Devlin et al., BERT, section 3.1, task 1.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

SHARE = 0.15
"""The fraction of a sequence's tokens that are masked."""
MASKED, REPLACED = 0.8, 0.1
"""The fractions of the masked tokens that the model sees as the mask, and as any token; the rest it sees unchanged."""
IGNORED = -100
"""A target that no loss counts, as torch and Hugging Face have it."""


@dataclass(frozen=True)
class Masking:
    """Masks the tokens of sequences.

    Args:
        seed: the seed of the draws.
        symbols: how many symbols the tokenizer has; any of them can replace a token.
        mask: the id of the mask.
    """

    seed: int
    symbols: int
    mask: int

    def mask_tokens(self, ids: np.ndarray, kind: str, first_sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, each (B, T).

        The same number of tokens is masked in each sequence: the fraction `SHARE`, at least one. So a mean over a
        microbatch weighs all of its sequences alike.

        Args:
            ids: (B, T).
            kind: prefix of the random key; training and validation use different prefixes.
            first_sequence: the number of the first sequence.
        """
        inputs = ids.astype(np.int64)
        targets = np.full(ids.shape, IGNORED, np.int64)
        for row in range(len(ids)):
            draw = np.random.Generator(np.random.Philox(_key(self.seed, kind, first_sequence + row)))
            masked_places = draw.permutation(ids.shape[1])[: max(1, round(SHARE * ids.shape[1]))]
            targets[row, masked_places] = ids[row, masked_places]
            chance = draw.random(len(masked_places))
            random_tokens = draw.integers(self.symbols, size=len(masked_places))
            inputs[row, masked_places[chance < MASKED]] = self.mask
            is_replaced = (chance >= MASKED) & (chance < MASKED + REPLACED)
            inputs[row, masked_places[is_replaced]] = random_tokens[is_replaced]
        return inputs, targets


def _key(seed: int, kind: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {seed} {number}".encode(), digest_size=16).digest(), "little")
