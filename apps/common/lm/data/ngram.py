"""Unigram, bigram and trigram models, the bar a trained model must clear: counted on the training tokens, scored on the
very validation tokens the model is scored on.

They are made as good as they can fairly be: interpolated absolute discounting, each discount tuned on a part of the
training tokens kept back. They may even look across the edges of the windows, which the model cannot.

Source: Ney, Essen and Kneser, On structuring probabilistic dependences in stochastic language modelling (1994).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDERS = {"unigram": 1, "bigram": 2, "trigram": 3}
"""How many tokens each model sees at once, the predicted one included."""

DISCOUNTS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)
"""What is tried for every order."""

TUNING_SHARE = 0.1
"""Of the training tokens, the end is kept back while the discounts are tuned."""


def score_ngrams(train: np.ndarray, validation: np.ndarray, sequence: int, vocab: int) -> dict[str, float]:
    """Mean nats a token of each n-gram model over the targets of `batches.validation_windows`.

    Args:
        train: ids to count, one-dimensional.
        validation: ids to score, one-dimensional.
        sequence: T, which decides where the scored tokens end.
        vocab: how many symbols there are.
    Cost: six sorts of the training tokens; about 2 s for 5 million.
    """
    cut = round(len(train) * (1.0 - TUNING_SHARE))
    tuned, _ = _climb(train[:cut], train[cut:], vocab, [DISCOUNTS] * len(ORDERS))
    scored = validation[: (len(validation) - 1) // sequence * sequence + 1]
    _, losses = _climb(train, scored, vocab, [(discount,) for discount in tuned])
    return dict(zip(ORDERS, losses, strict=True))


def compare_with_ngrams(loss: float, grams: dict[str, float]) -> str:
    """The validation loss beside those of n-gram models on the same tokens, where these were counted."""
    if not grams:
        return f"validation loss {loss:.4f} nats a token"
    others = ", ".join(f"{name} {value:.4f}" for name, value in grams.items())
    below = grams["bigram"] - loss
    where = f"{below:.4f} under the bigram" if below >= 0 else f"{-below:.4f} over the bigram"
    return f"validation loss {loss:.4f} nats a token, {where} ({others})"


def _climb(
    train: np.ndarray, scored: np.ndarray, vocab: int, options: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]]:
    """From the uniform model upwards, count each order, take its best discount, and build the next order on it.

    Returns: the discounts taken and the losses over `scored[1:]`, order by order.
    """
    below = np.full(len(scored) - 1, 1.0 / vocab)
    discounts, losses = [], []
    for order, choices in zip(ORDERS.values(), options, strict=True):
        seen = _Seen.find(_grams(train, order, vocab), _grams(scored, order, vocab)[max(0, 2 - order) :], vocab)
        tried = {discount: seen.interpolate(below, discount) for discount in choices}
        best = min(tried, key=lambda discount: _loss(tried[discount]))
        below = tried[best]
        discounts.append(best)
        losses.append(_loss(below))
    return discounts, losses


def _loss(probabilities: np.ndarray) -> float:
    return float(-np.log(probabilities).mean())


def _grams(tokens: np.ndarray, order: int, vocab: int) -> np.ndarray:
    """Every run of `order` tokens as one number, its digits in base `vocab` the tokens."""
    count = max(0, len(tokens) - order + 1)
    grams = np.zeros(count, np.int64)
    for place in range(order):
        grams = grams * vocab + tokens[place : place + count]
    return grams


@dataclass
class _Seen:
    """What training saw of some n-grams, an array entry each.

    Args:
        times: how often the n-gram came.
        context: how often its context came.
        kinds: how many different tokens followed the context.
    """

    times: np.ndarray
    context: np.ndarray
    kinds: np.ndarray

    @classmethod
    def find(cls, train: np.ndarray, wanted: np.ndarray, vocab: int) -> "_Seen":
        """Count the training n-grams and look up those asked for; both are numbers in base `vocab`."""
        grams, times = np.unique(train, return_counts=True)
        contexts, first = np.unique(grams // vocab, return_index=True)
        totals = np.add.reduceat(times, first) if len(first) else times
        kinds = np.diff(first, append=len(grams))
        before = wanted // vocab
        return cls(
            _look_up(grams, times, wanted), _look_up(contexts, totals, before), _look_up(contexts, kinds, before)
        )

    def interpolate(self, below: np.ndarray, discount: float) -> np.ndarray:
        """Take `discount` from every count and spread it as the order below would.

        Args:
            below: that order's probabilities; one entry more than here where the first token lacks a context.
        """
        spread = discount * self.kinds * below[len(below) - len(self.times) :]
        known = (np.maximum(self.times - discount, 0.0) + spread) / np.maximum(self.context, 1)
        result = below.copy()
        result[len(below) - len(self.times) :][self.context > 0] = known[self.context > 0]
        return result


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each key asked for, 0 where it is unknown; `keys` are sorted."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, values[index], 0)
