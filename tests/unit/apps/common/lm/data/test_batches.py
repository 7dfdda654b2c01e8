"""Batches: a function of (seed, step, global batch), each sequence once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.common.lm.data.batches import Batches, validation_windows
from pipelined.api.data.tokens.mapped import MappedTokens
from pipelined.errors import UsageError

TOKENS = np.arange(1000, dtype=np.uint16)


@given(step=st.integers(0, 50), seed=st.integers(0, 3), batch=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_rows_of_a_step_do_not_depend_on_how_they_are_shared_out(step: int, seed: int, batch: int):
    shared = Batches(TOKENS, 10, batch, 12 // batch, seed)
    inputs = np.concatenate([shared.rows(step, m)[0] for m in range(12 // batch)])
    assert np.array_equal(inputs, Batches(TOKENS, 10, 12, 1, seed).rows(step, 0)[0])


@given(order=st.permutations(range(40)))
def test_rows_may_be_requested_in_any_order(order: list[int]):
    straight, mixed = (Batches(TOKENS, 10, 4, 2, 0) for _ in range(2))
    expected = [straight.rows(step, 1)[0] for step in range(40)]
    for step in order:
        assert np.array_equal(mixed.rows(step, 1)[0], expected[step])


def test_targets_are_the_inputs_one_token_later():
    inputs, targets = Batches(TOKENS, 10, 4, 2, 0).rows(3, 1)
    assert inputs.shape == targets.shape == (4, 10) and inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(inputs + 1, targets)


def test_an_epoch_takes_every_sequence_once_and_the_next_another_order():
    batches = Batches(TOKENS, 10, 3, 3, 7)
    assert batches.epoch_sequences == 99
    epochs = [
        np.concatenate([batches.rows(s, m)[0] for s in range(e * 11, e * 11 + 11) for m in range(3)]) for e in (0, 1)
    ]
    for epoch in epochs:
        assert len(np.unique(epoch)) == epoch.size
    assert not np.array_equal(*epochs)


def test_another_seed_gives_other_rows():
    assert not np.array_equal(*(Batches(TOKENS, 10, 4, 2, seed).rows(0, 0)[0] for seed in (0, 1)))


def test_too_little_text_for_a_batch_is_refused_with_the_numbers():
    Batches(TOKENS[:90], 10, 4, 2, 0)
    with pytest.raises(UsageError, match=r"tokens: 89, needed: 90.*lower --batch or --seq"):
        Batches(TOKENS[:89], 10, 4, 2, 0)


def test_validation_windows_do_not_overlap_and_the_partial_one_is_dropped():
    inputs, targets = validation_windows(TOKENS[:35], 10)
    assert np.array_equal(inputs.ravel(), np.arange(30)) and np.array_equal(targets.ravel(), np.arange(1, 31))
    assert len(validation_windows(TOKENS[:30], 10)[0]) == 2
    with pytest.raises(UsageError, match=r"tokens: 10, needed: 11"):
        validation_windows(TOKENS[:10], 10)


def mapped(folder, count: int = 1000) -> MappedTokens:
    TOKENS[:count].tofile(folder / "a.bin")
    return MappedTokens.open([(folder / "a.bin", count)], "uint16")


def test_an_epoch_of_tokens_in_files_takes_every_window_once_from_the_offset_of_tokens_in_memory(tmp_path):
    in_files, in_memory = (Batches(tokens, 10, 3, 3, 7) for tokens in (mapped(tmp_path), TOKENS))
    for epoch in (0, 1):
        one, other = (
            np.concatenate([b.rows(s, m)[0] for s in range(epoch * 11, epoch * 11 + 11) for m in range(3)])
            for b in (in_files, in_memory)
        )
        assert sorted(one[:, 0]) == sorted(other[:, 0]) and not np.array_equal(one, other)


@settings(max_examples=20)
@given(step=st.integers(0, 15), batch=st.sampled_from([1, 3, 12]))
def test_a_resumed_run_finds_the_rows_of_a_step_in_files(tmp_path_factory, step: int, batch: int):
    tokens = mapped(tmp_path_factory.mktemp("tokens"))
    resumed = Batches(tokens, 10, batch, 12 // batch, 5)
    inputs = np.concatenate([resumed.rows(step, m)[0] for m in range(12 // batch)])
    straight = Batches(tokens, 10, 12, 1, 5)
    assert np.array_equal(inputs, [straight.rows(number, 0)[0] for number in range(step + 1)][-1])


def test_a_few_validation_windows_are_taken_at_even_distances(tmp_path):
    for tokens in (TOKENS[:95], mapped(tmp_path, 95)):
        inputs, targets = validation_windows(tokens, 10, 3)
        assert inputs[:, 0].tolist() == [0, 30, 60] and np.array_equal(inputs + 1, targets)
        assert len(validation_windows(tokens, 10, 50)[0]) == 9
