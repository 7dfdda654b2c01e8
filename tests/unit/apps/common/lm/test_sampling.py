"""Sampling: keyed draws, cut to the likeliest, within the context."""

import pytest
import torch

from apps.common.lm.sampling import Picker, sample

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0])


def test_a_draw_depends_on_seed_and_number_alone():
    first = [Picker(seed=1)(LOGITS, n) for n in range(50)]
    torch.manual_seed(9)
    assert first == [Picker(seed=1)(LOGITS, n) for n in range(50)]
    assert first != [Picker(seed=2)(LOGITS, n) for n in range(50)]


def test_temperature_zero_picks_the_argmax():
    assert {Picker(seed=s, temperature=0.0)(LOGITS, s) for s in range(20)} == {1}


def test_only_the_top_k_are_drawn():
    assert {Picker(seed=0, temperature=5.0, top_k=2)(LOGITS, n) for n in range(200)} == {1, 3}
    assert {Picker(seed=0, temperature=5.0, top_k=0)(LOGITS, n) for n in range(200)} == {0, 1, 2, 3}


def test_only_the_likeliest_that_come_to_top_p_are_drawn():
    """The probabilities are 0.03, 0.64, 0.09, 0.24: two come to 0.88, three to 0.97."""
    for top_p, chosen in ((0.6, {1}), (0.65, {1, 3}), (0.87, {1, 3}), (0.9, {1, 2, 3}), (1.0, {0, 1, 2, 3})):
        assert {Picker(0, 1.0, 0, top_p)(LOGITS, n) for n in range(300)} == chosen


def test_tokens_are_drawn_as_often_as_they_are_likely():
    drawn = torch.tensor([Picker(seed=0, temperature=2.0, top_k=0)(LOGITS, n) for n in range(4000)])
    share = torch.bincount(drawn, minlength=4) / 4000
    assert share.tolist() == pytest.approx((LOGITS / 2.0).softmax(0).tolist(), abs=0.03)


def test_a_prompt_is_continued_within_the_context():
    seen = []

    def successor(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tokens.shape[1])
        return torch.nn.functional.one_hot((tokens + 1) % 10, 10).float() * 100

    assert sample(successor, [3, 4], 5, 4, Picker(seed=0)) == [3, 4, 5, 6, 7, 8, 9]
    assert seen == [2, 1, 1, 4, 4]
