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
"""The share of the training tokens, their end, that is kept back while the discounts are tuned."""


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
    discounts, _ = _score_orders(train[:cut], train[cut:], vocab, [DISCOUNTS] * len(ORDERS))
    scored_tokens = validation[: (len(validation) - 1) // sequence * sequence + 1]
    _, losses = _score_orders(train, scored_tokens, vocab, [(discount,) for discount in discounts])
    return dict(zip(ORDERS, losses, strict=True))


def compare_with_ngrams(loss: float, grams: dict[str, float]) -> str:
    """The validation loss beside those of n-gram models on the same tokens, where these were counted."""
    if not grams:
        return f"validation loss {loss:.4f} nats a token"
    ngram_losses = ", ".join(f"{name} {value:.4f}" for name, value in grams.items())
    advantage = grams["bigram"] - loss
    comparison = f"{advantage:.4f} under the bigram" if advantage >= 0 else f"{-advantage:.4f} over the bigram"
    return f"validation loss {loss:.4f} nats a token, {comparison} ({ngram_losses})"


def _score_orders(
    train: np.ndarray, scored_tokens: np.ndarray, vocab: int, options: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]]:
    """From the uniform model upwards, count each order, take its best discount, and build the next order on it.

    Returns: the discounts taken and the losses over `scored[1:]`, order by order.
    """
    lower_order = np.full(len(scored_tokens) - 1, 1.0 / vocab)
    discounts, losses = [], []
    for order, choices in zip(ORDERS.values(), options, strict=True):
        counts = _NgramCounts.count(
            _grams(train, order, vocab), _grams(scored_tokens, order, vocab)[max(0, 2 - order) :], vocab
        )
        by_discount = {discount: counts.interpolate(lower_order, discount) for discount in choices}
        best = min(by_discount, key=lambda discount: _loss(by_discount[discount]))
        lower_order = by_discount[best]
        discounts.append(best)
        losses.append(_loss(lower_order))
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
class _NgramCounts:
    """The counts of some n-grams in the training tokens, an array entry for each.

    Args:
        times: how often the n-gram came.
        context: how often its context came.
        kinds: how many different tokens followed the context.
    """

    times: np.ndarray
    context: np.ndarray
    kinds: np.ndarray

    @classmethod
    def count(cls, train: np.ndarray, ngrams: np.ndarray, vocab: int) -> "_NgramCounts":
        """Count the training n-grams and look up those asked for; both are numbers in base `vocab`."""
        grams, times = np.unique(train, return_counts=True)
        contexts, starts = np.unique(grams // vocab, return_index=True)
        totals = np.add.reduceat(times, starts) if len(starts) else times
        kinds = np.diff(starts, append=len(grams))
        ngram_contexts = ngrams // vocab
        return cls(
            _look_up(grams, times, ngrams),
            _look_up(contexts, totals, ngram_contexts),
            _look_up(contexts, kinds, ngram_contexts),
        )

    def interpolate(self, lower_order: np.ndarray, discount: float) -> np.ndarray:
        """Take `discount` from every count and spread it as the order below would.

        Args:
            lower_order: that order's probabilities; one entry more than here where the first token lacks a context.
        """
        spread = discount * self.kinds * lower_order[len(lower_order) - len(self.times) :]
        probabilities = (np.maximum(self.times - discount, 0.0) + spread) / np.maximum(self.context, 1)
        result = lower_order.copy()
        result[len(lower_order) - len(self.times) :][self.context > 0] = probabilities[self.context > 0]
        return result


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The value of each key asked for, 0 where it is unknown; `keys` are sorted."""
    if not len(keys):
        return np.zeros(len(queries), np.int64)
    index = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[index] == queries, values[index], 0)
