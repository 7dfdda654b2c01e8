"""Masked tokens: their number, their shares, and draws that do not depend on the cut of a batch."""

import numpy as np

from apps.common.lm.data.masking import IGNORED, Masking

IDS = np.arange(64 * 40).reshape(64, 40) % 250
MASKING = Masking(3, 256, 256)


def test_fifteen_in_a_hundred_tokens_of_each_sequence_are_guessed():
    inputs, targets = MASKING.mask_tokens(IDS, "mask", 0)
    guessed = targets != IGNORED
    assert (guessed.sum(1) == 6).all()
    assert (targets[guessed] == IDS[guessed]).all() and (inputs[~guessed] == IDS[~guessed]).all()


def test_of_those_four_in_five_are_masked_and_one_in_ten_is_any_token():
    ids = np.tile(IDS, (25, 1))
    inputs, targets = MASKING.mask_tokens(ids, "mask", 0)
    seen, guessed = inputs[targets != IGNORED], ids[targets != IGNORED]
    masked, kept = (seen == 256).mean(), (seen == guessed).mean()
    assert abs(masked - 0.8) < 0.016 and abs(kept - 0.1) < 0.012 and abs(1 - masked - kept - 0.1) < 0.012  # 4 sigma


def test_a_sequence_is_masked_alike_in_every_cut_and_otherwise_under_another_key():
    whole = MASKING.mask_tokens(IDS, "mask", 100)
    for start in (0, 16, 32, 48):
        part = MASKING.mask_tokens(IDS[start : start + 16], "mask", 100 + start)
        assert all((one == other[start : start + 16]).all() for one, other in zip(part, whole, strict=True))
    others = MASKING.mask_tokens(IDS, "held out", 100), Masking(4, 256, 256).mask_tokens(IDS, "mask", 100)
    assert all((other[1] != whole[1]).any() for other in others)


def test_a_short_sequence_has_one_token_to_guess():
    assert (MASKING.mask_tokens(IDS[:, :2], "mask", 0)[1] != IGNORED).sum(1).tolist() == [1] * 64
