"""The bytes that a peer is planned to hold, by hand."""

from functools import partial

import torch
from torch import nn

from pipelined.api.swarm.training import UserProgram, UserTask, UserTraining
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.swarm.stages.planned_memory import HeldBytes, stage_bytes

IN, WIDE, OUT, ROWS = 512, 2048, 4, 300
LAYERS = [lambda: nn.Linear(IN, WIDE), lambda: nn.Linear(WIDE, OUT)]
NUMBERS = IN * WIDE + WIDE
COUNT = 8
"""Bytes of the number of updates in a state."""
FREE = {"delayed": False, "saves": False, "on_host": True}


def training_of(optimizer=torch.optim.AdamW, **settings):
    task = UserTask(
        depth=2, microbatches=4, steps=1, rows=ROWS, x=("float32", (ROWS, IN)), y=("int64", (ROWS,)), **settings
    )
    program = UserProgram(LAYERS, nn.functional.cross_entropy, partial(UserOptimizer, optimizer))
    return UserTraining(program, task)


def test_a_first_stage_holds_its_input_its_output_and_the_gradients_of_all_but_the_input():
    held_bytes = stage_bytes(training_of(), 0)
    counts = 2 * 4  # AdamW counts its updates for each of two tensors
    assert held_bytes.state == 3 * 4 * NUMBERS + counts + COUNT
    assert held_bytes.passing == 4 * ROWS * (IN + WIDE) + 4 * ROWS * WIDE + 4 * NUMBERS
    assert held_bytes.gradients == held_bytes.sums == 4 * NUMBERS
    assert held_bytes.norm == 2 * 8 * (1 << 20), "in pieces"


def test_an_optimizer_without_moments_keeps_none_and_exact_sums_have_eight_bytes_and_a_maximum_for_each_tensor():
    held_bytes = stage_bytes(training_of(partial(torch.optim.SGD, lr=0.1), exact_sums=True), 0)
    assert held_bytes.state == 4 * NUMBERS + COUNT
    assert held_bytes.sums == 8 * (NUMBERS + 2)
    assert held_bytes.norm == 2 * 8 * (1 << 20) + held_bytes.gradients, "the gradients are rounded first"


def test_of_an_optimizer_that_needs_values_the_state_is_that_of_parameters_of_zeros():
    """Adafactor keeps a number for each row and column of a matrix, and all of a vector."""
    held_bytes = stage_bytes(training_of(torch.optim.Adafactor), 0)
    counts = 2 * 4  # of its updates for each of two tensors
    assert held_bytes.state == 4 * NUMBERS + 4 * (IN + WIDE) + 4 * WIDE + counts + COUNT


STAGE = HeldBytes(state=300, passing=1000, gradients=100, sums=100, norm=50)


def test_a_peer_holds_sums_and_two_totals_in_a_pass_and_another_total_in_an_update_with_two_copies_of_the_gradients():
    assert STAGE.most_bytes(**FREE) == 300 + 3 * 100 + 1000
    assert STAGE._replace(passing=10).most_bytes(**FREE) == 300 + 4 * 100 + 2 * 100
    assert STAGE._replace(passing=10, norm=500).most_bytes(**FREE) == 300 + 4 * 100 + 500


def test_a_peer_that_saves_holds_a_copy_of_its_state():
    assert STAGE.most_bytes(**FREE | {"saves": True}) == 2 * 300 + 3 * 100 + 1000


def test_with_delayed_updates_it_holds_two_steps_a_round_beside_them_and_a_copy_of_one_where_it_changes_between_them():
    assert STAGE.most_bytes(**FREE | {"delayed": True}) == 2 * 300 + 6 * 100 + 1000
    assert STAGE._replace(passing=10).most_bytes(**FREE | {"delayed": True}) == 3 * 300 + 7 * 100
    assert STAGE.most_bytes(delayed=True, saves=True, on_host=True) == 3 * 300 + 7 * 100 + 1000, (
        "and the pending gradient"
    )


def test_on_a_device_of_its_own_it_holds_state_and_sums():
    assert STAGE.most_bytes(delayed=True, saves=True, on_host=False) == 300 + 100 + 1000
