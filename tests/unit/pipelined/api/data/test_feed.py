"""Batches of whole steps: cut in order, repeated where they can be, refused where they do not fit."""

import pytest
import torch

from pipelined.api.data.batches import BatchFeed
from pipelined.api.data.feed import Feed, MicrobatchFeed
from pipelined.training.models.batch import BatchError


def batches(count, rows=6):
    return [(torch.arange(rows) + 10.0 * step, torch.arange(rows)) for step in range(count)]


def feed(given, microbatches=3, kept=2):
    made = BatchFeed(given)
    made.configure(made.rows_each(microbatches), torch.float64, kept)
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
        ([(torch.zeros(6), [1, 2])], "targets of batch 0: a list of int, int is not made of tensors with rows"),
        (
            [({"x": torch.zeros(6), "mask": torch.zeros(5)}, torch.zeros(6))],
            "inputs of batch 0 has tensors with 5 and 6",
        ),
        ([(torch.zeros(6), torch.zeros(5))], "6 rows of inputs and 5 of targets"),
        ([(torch.zeros(5), torch.zeros(5))], "5 rows cannot be cut into 3 microbatches"),
        ([], "the batches are empty; give at least one"),
    ],
)
def test_batches_that_do_not_fit_are_refused_with_both_numbers(given, message):
    with pytest.raises(BatchError, match=message):
        feed(given)


def test_a_later_batch_of_another_size_is_refused():
    made = feed([*batches(1), *batches(1, rows=3)])
    with pytest.raises(BatchError, match=r"batch 1 has 3 rows \(batch 0: 6\)"):
        made.inputs(1, 0)


def test_every_tensor_of_a_dict_is_cut():
    batch = ({"x": torch.arange(6.0), "mask": torch.arange(6)}, (torch.arange(6), torch.arange(6.0)))
    made = feed([batch])
    found = made.inputs(0, 1)
    assert (found["x"].tolist(), found["mask"].tolist(), found["x"].dtype) == ([2.0, 3.0], [2, 3], torch.float64)
    assert [one.tolist() for one in made.targets(0, 2)] == [[4, 5], [4.0, 5.0]]


def test_a_feed_of_microbatches_is_called_with_step_and_number_and_checked():
    calls = []

    def rows(step, microbatch):
        calls.append((step, microbatch))
        return torch.zeros(3 if step else 2)

    made = MicrobatchFeed(Feed(rows, rows))
    assert made.rows_each(8) == 2
    made.configure(2, torch.float64, 1)
    assert made.inputs(0, 5).dtype == torch.float64
    with pytest.raises(BatchError, match=r"microbatch 1 of step 4 has 3 rows \(the first one: 2\)"):
        made.targets(4, 1)
    assert calls == [(0, 0), (0, 5), (4, 1)]


def test_equal_batches_have_equal_digests_and_a_feed_of_microbatches_has_none():
    x, y = torch.arange(8.0).reshape(4, 2), torch.ones(4)
    one, same, other = (BatchFeed([batch]).digests(0) for batch in ((x, y), (x.clone(), y), (x + 1, y)))
    assert one == same and one["inputs"] != other["inputs"] and one["targets"] == other["targets"]
    assert MicrobatchFeed(Feed(lambda step, number: x, lambda step, number: y)).digests(0) == {}
