"""A recomputed part keeps its inputs alone, runs once more, and gives the gradients of a part that keeps everything."""

import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from pipelined.random.keyed_random import KeyedRandom, dropout
from pipelined.random.torch_random import TorchRandom
from pipelined.training.graph.recompute import attention_core, run_recomputed, selecting_attention
from pipelined.training.graph.split_backward import backward_input

WIDTH = 4


class Part(nn.Module):
    """Two maps with both kinds of dropout, a norm with running statistics and a count of its runs."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.runs = 0

    def forward(self, given):
        self.runs += 1
        y = functional.dropout(self.norm(self.first(given["x"])).tanh(), 0.4)
        return {"y": self.second(dropout(y, 0.3, "part")) * given["scale"], "runs": self.runs}


def parts():
    torch.manual_seed(1)
    model = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Part()]).double()
    return model, torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True)


def forward(recomputes):
    """Output, input and model of one forward with dropout of torch and of ours."""
    (before, part), x = parts()
    run = (lambda *inputs: run_recomputed(part, *inputs)) if recomputes else part
    work = lambda: run({"x": before(x).relu(), "scale": 2.0})["y"]  # noqa: E731
    output = TorchRandom(torch.device("cpu")).run(work, KeyedRandom(1, 2, 3), "stage 0")
    return output, x, nn.ModuleList([before, part])


def state(model):
    return {**dict(model.named_buffers()), **{name: p.grad for name, p in model.named_parameters()}}


def test_between_the_halves_of_a_backward_a_part_without_parameters_keeps_nothing():
    before, after, x = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), torch.randn(3, WIDTH, requires_grad=True)
    part_input = before(x)
    storage = weakref.ref(part_input.untyped_storage())
    output = after(run_recomputed(lambda y: y.softmax(1).exp(), part_input))
    del part_input
    assert storage() is not None
    _, weights = backward_input([output], [torch.ones_like(output)], [x])
    assert storage() is None
    weights.run()


@pytest.mark.parametrize("halves", [False, True])
def test_a_part_has_the_gradients_buffers_and_random_numbers_of_one_that_keeps_everything(halves):
    results = []
    for recomputes in (False, True):
        output, x, model = forward(recomputes)
        torch.manual_seed(7)  # the backward comes when other numbers have been drawn
        if halves:
            (back,), weights = backward_input([output], [torch.ones_like(output)], [x])
            weights.run()
        else:
            output.sum().backward()
            back = x.grad
        assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(7)))
        assert model[1].runs == 1 + recomputes
        results.append({"x": back, "y": output.detach(), **state(model)})
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_a_part_keeps_its_inputs_alone_and_nothing_after_the_backward():
    x = torch.randn(3, 3, requires_grad=True)
    seen, shapes_kept = [], []

    def part(y):
        seen.append(weakref.ref(inner := y.exp()))
        return inner.sigmoid().exp()

    with saved_tensors_hooks(lambda tensor: shapes_kept.append(tensor.shape) or tensor, lambda tensor: tensor):
        output = run_recomputed(part, x)
    assert shapes_kept == [x.shape]
    assert seen[0]() is None
    output.sum().backward()
    assert [reference() for reference in seen] == [None, None]


def test_a_part_within_a_part_and_autocast_run_again_as_they_ran():
    torch.manual_seed(1)
    model, x, results = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(4, 8), []

    def part(y):
        return attention_core(lambda z: (z @ z.T).softmax(1) @ z, model(y)).exp() * y

    for run in (lambda part, x: part(x), run_recomputed):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), selecting_attention(run is run_recomputed):
            y = run(part, x)
        y.float().sum().backward()
        results.append([y, *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *results))


def test_a_part_that_computes_otherwise_the_second_time_is_refused():
    shapes = iter([3, 2])
    output = run_recomputed(lambda x: x[: next(shapes)].exp(), torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"saved another tensor the second time \(first: \(3,\)\)"):
        output.sum().backward()


def test_without_a_graph_a_part_just_runs():
    with torch.no_grad():
        assert run_recomputed(torch.exp, torch.zeros(2)).tolist() == [1.0, 1.0]


def test_a_weight_that_changes_before_the_backward_is_refused_as_by_torch():
    layer = nn.Linear(WIDTH, WIDTH)
    for run in (layer, lambda x: run_recomputed(layer, x)):
        output = run(torch.ones(2, WIDTH, requires_grad=True))
        with torch.no_grad():
            layer.weight.mul_(2.0)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation|changed between its forward and its"):
            output.square().sum().backward()


def test_the_choice_of_attention_ends_with_its_block():
    """A team that trained after such a stage in one process recomputed its attentions without being asked."""
    ran, x = [], torch.randn(4, 8, requires_grad=True)

    def core(y):
        ran.append(torch.is_grad_enabled())
        return y.exp()

    with selecting_attention(True):
        attention_core(core, x).sum().backward()
    attention_core(core, x).sum().backward()
    assert len(ran) == 3, "once more in the first backward alone"


class Chained(nn.Module):
    """Each forward reads what the one before wrote; a negative mean is not written."""

    def __init__(self, persistent=True):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.ones(WIDTH), persistent)

    def forward(self, x):
        y = self.linear(x) * self.seen.clone()
        if x.detach().mean() > 0:
            self.seen = self.seen.mul_(0.5).add_(x.detach().mean(0))
        return y.tanh()


@pytest.mark.parametrize("persistent", [True, False])
def test_a_part_reads_again_the_buffers_that_its_first_run_read(persistent):
    results = []
    for recomputes in (False, True):
        torch.manual_seed(1)
        part = Chained(persistent).double()
        inputs = [sign * torch.rand(3, WIDTH, dtype=torch.float64).requires_grad_() for sign in (-1, 1, 1, -1)]
        outputs = [run_recomputed(part, x) if recomputes else part(x) for x in inputs]
        torch.cat(outputs).square().sum().backward()
        results.append([part.seen, *(p.grad for p in part.parameters())])
    assert all(map(torch.equal, *results))
