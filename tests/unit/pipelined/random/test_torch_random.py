"""Torch's own draws are functions of their key, and are found out when they begin."""

import threading

import torch
from torch import nn
from torch.nn import functional

from pipelined.random.keyed_random import KeyedRandom, current_random
from pipelined.random.torch_random import TorchRandom, run_layer
from pipelined.training.stages.stage import Stage, evaluating

CPU, RANDOM = torch.device("cpu"), KeyedRandom(1, 2, 3)


def test_the_same_key_draws_the_same_and_the_process_s_own_stream_goes_on_as_it_was():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    random = TorchRandom(CPU)
    one, other = (random.run(lambda: torch.rand(4), RANDOM, "stage 0") for _ in range(2))
    elsewhere = random.run(lambda: torch.rand(4), RANDOM, "stage 1")
    assert torch.equal(one, other) and not torch.equal(one, elsewhere)
    assert torch.equal(torch.rand(2), expected)


def test_draws_that_begin_late_are_found():
    """A dropout with a rate that rises from 0 draws nothing at first."""
    random, rate = TorchRandom(CPU), 0.0
    drawn = []
    for rate in (0.0, 0.0, 0.5, 0.5):
        drawn.append(random.run(lambda rate=rate: functional.dropout(torch.ones(64), rate), RANDOM, "stage 0"))
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[2], drawn[3])
    assert not drawn[2].all()


def test_a_layer_draws_the_same_in_whatever_stage_it_is():
    """The layers beside it draw, too."""

    def layers(*names):
        return lambda: {name: run_layer(lambda: torch.rand(2), name) for name in names}

    one, other = TorchRandom(CPU), TorchRandom(CPU)
    whole = one.run(layers("a", "b"), RANDOM, "stage 0")
    alone = [other.run(layers("b"), RANDOM, "stage 1") for _ in range(2)]
    assert torch.equal(whole["b"], alone[0]["b"]) and torch.equal(whole["b"], alone[1]["b"])
    assert not torch.equal(whole["a"], whole["b"])
    assert current_random() is None


def test_layers_that_draw_late_are_found():
    random, rates = TorchRandom(CPU), (0.0, 0.0, 0.5, 0.5)
    drawn = [
        random.run(lambda p=p: run_layer(lambda: functional.dropout(torch.ones(64), p), "a"), RANDOM, "stage 0")
        for p in rates
    ]
    expected = TorchRandom(CPU).run(lambda: run_layer(lambda: functional.dropout(torch.ones(64), 0.5), "a"), RANDOM, "")
    assert torch.equal(drawn[2], expected) and torch.equal(drawn[3], expected) and not drawn[2].all()


def test_ranks_of_one_process_do_not_draw_from_one_another_s_streams():
    """A thread that draws is alone; one that draws nothing waits for it."""
    drawing, quiet, entered = TorchRandom(CPU), TorchRandom(CPU), threading.Event()
    expected = drawing.run(lambda: torch.rand(4), RANDOM, "stage 0")
    quiet.run(lambda: None, RANDOM, "stage 1")

    def draws():
        first = torch.rand(2)
        other.start()
        assert not entered.wait(0.02)
        return torch.cat([first, torch.rand(2)])

    other = threading.Thread(target=lambda: quiet.run(entered.set, RANDOM, "stage 1"))
    assert torch.equal(drawing.run(draws, RANDOM, "stage 0"), expected)
    other.join()
    assert entered.is_set()


def test_evaluation_mode_ends_with_the_evaluation_and_leaves_what_was_in_it_before():
    module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    with evaluating(module):
        assert not any(one.training for one in module.modules())
    assert [one.training for one in module.modules()] == [True, True, False]


class Wide:
    def loss(self, output, targets):
        return output.mean()


def test_a_stage_evaluates_without_dropout_or_new_statistics():
    part = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    stage, x = Stage(Wide(), part, 0, 2, CPU), torch.rand(8, 2)
    assert torch.equal(stage.evaluate(x), stage.evaluate(x))
    assert part[1].num_batches_tracked == 0
