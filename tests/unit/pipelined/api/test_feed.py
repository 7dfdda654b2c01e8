"""Batches of whole steps: cut in order, repeated where they can be, refused where they do not fit."""

import pytest
import torch

from pipelined.api.feed import BatchError, BatchFeed


def batches(count, rows=6):
    return [(torch.arange(rows) + 10.0 * step, torch.arange(rows)) for step in range(count)]


def feed(given, microbatches=3, kept=2):
    made = BatchFeed(given)
    made.cut(made.rows_each(microbatches), torch.float64, kept)
    return made


def test_a_microbatch_has_the_rows_of_its_number():
    made = feed(batches(2))
    assert made.inputs(1, 2).tolist() == [14.0, 15.0]
    assert made.targets(1, 0).tolist() == [0, 1]


def test_floating_point_is_converted_and_ids_are_not():
    made = feed(batches(1))
    assert (made.inputs(0, 0).dtype, made.targets(0, 0).dtype) == (torch.float64, torch.int64)


def test_a_list_begins_again_and_a_generator_does_not():
    assert feed(batches(2)).inputs(2, 0).tolist() == [0.0, 1.0]
    with pytest.raises(BatchError, match="the batches end after step 2"):
        feed(iter(batches(2))).inputs(2, 0)


def test_a_batch_is_read_once_for_all_ranks_of_a_process():
    read = []

    def generate():
        for number, batch in enumerate(batches(3)):
            read.append(number)
            yield batch

    made = feed(generate())
    for _ in range(4):
        made.inputs(1, 0)
    assert read == [0, 1]


def test_earlier_steps_are_skipped_after_a_resume():
    made = feed(iter(batches(3)))
    made.skip(2)
    assert made.inputs(2, 0).tolist() == [20.0, 21.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([torch.zeros(6)], "batch 0 is not a pair .* but a Tensor"),
        ([(torch.zeros(6), [1, 2])], "but a tuple of Tensor, list"),
        ([(torch.zeros(6), torch.zeros(5))], "6 rows of inputs and 5 of targets"),
        ([(torch.zeros(5), torch.zeros(5))], "5 rows cannot be cut into 3 microbatches"),
        ([], "the batches end after step 0"),
    ],
)
def test_batches_that_do_not_fit_are_refused_with_both_numbers(given, message):
    with pytest.raises(BatchError, match=message):
        feed(given)


def test_a_later_batch_of_another_size_is_refused():
    made = feed([*batches(1), *batches(1, rows=3)])
    with pytest.raises(BatchError, match=r"batch 1 has 3 rows of inputs and 3 of targets \(batch 0: 6\)"):
        made.inputs(1, 0)
