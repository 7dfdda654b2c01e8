"""The n-gram bar: right probabilities, never beaten by a simpler count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.common.lm.data.ngram import _score_orders, score_ngrams

TOKENS = st.lists(st.integers(0, 4), min_size=20, max_size=60).map(np.array)


def probability(train: np.ndarray, history: tuple[int, ...], token: int, discount: float, vocab: int) -> float:
    """Interpolated absolute discounting, counted one by one."""
    below = probability(train, history[1:], token, discount, vocab) if history else 1.0 / vocab
    followers = [
        train[i + len(history)]
        for i in range(len(train) - len(history))
        if tuple(train[i : i + len(history)]) == history
    ]
    if not followers:
        return below
    kept = max(followers.count(token) - discount, 0.0)
    return (kept + discount * len(set(followers)) * below) / len(followers)


@settings(max_examples=30, deadline=None)
@given(train=TOKENS, scored=TOKENS)
def test_losses_are_those_of_counting_by_hand(train: np.ndarray, scored: np.ndarray):
    _, losses = _score_orders(train, scored, 5, [(0.3,)] * 3)
    for order, loss in enumerate(losses, 1):
        histories = [tuple(scored[max(0, i - order + 1) : i]) for i in range(1, len(scored))]
        chances = [probability(train, h, t, 0.3, 5) for h, t in zip(histories, scored[1:], strict=True)]
        assert loss == pytest.approx(-np.log(chances).mean())


@given(train=TOKENS, history=st.lists(st.integers(0, 4), max_size=2))
def test_the_chances_of_all_tokens_sum_to_one(train: np.ndarray, history: list[int]):
    assert sum(probability(train, tuple(history), t, 0.3, 5) for t in range(5)) == pytest.approx(1.0)


def test_a_chain_is_scored_at_its_entropy():
    draw = np.random.default_rng(0)
    tokens = np.cumsum(draw.choice([1, 2], 60_000, p=[0.8, 0.2])) % 10  # the next is one or two further
    found = score_ngrams(tokens[:50_000], tokens[50_000:], 64, 10)
    entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    assert found["unigram"] == pytest.approx(np.log(10), abs=0.01)
    assert found["bigram"] == pytest.approx(entropy, abs=0.02)
    assert found["trigram"] == pytest.approx(entropy, abs=0.02)


def test_symbols_never_seen_in_training_have_a_finite_price():
    found = score_ngrams(np.zeros(500, np.uint16), np.arange(100, dtype=np.uint16), 10, 50257)
    assert all(np.isfinite(loss) for loss in found.values())


def test_only_the_targets_of_whole_windows_count():
    train, validation = np.tile(np.arange(8), 50), np.tile(np.arange(8), 8)
    spoiled = validation.copy()
    spoiled[61:] = 0  # 60 tokens are targets: 6 windows of 10
    assert score_ngrams(train, validation, 10, 8) == score_ngrams(train, spoiled, 10, 8)
    spoiled[60] = 7
    assert score_ngrams(train, validation, 10, 8) != score_ngrams(train, spoiled, 10, 8)


def test_large_vocabularies_do_not_overflow():
    tokens = np.random.default_rng(1).integers(250_000, 260_000, 5000).astype(np.uint32)
    found = score_ngrams(tokens, tokens[:1000], 10, 260_000)
    assert found["trigram"] < found["bigram"] < found["unigram"] < np.log(260_000)
