"""Both halves of a backward give what the whole one gives, to the bit, whatever the module; memory is let go of."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from apps.common.lm.models.gpt2 import Block
from apps.common.lm.models.gpt2_presets import ModelConfig
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.training.graph.split_backward import backward_input

B, T, C = 2, 5, 8


class Twice(nn.Module):
    """One affine map used twice, the second time on the way of the first."""

    def __init__(self):
        super().__init__()
        self.map, self.other = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x):
        return self.map(self.other(torch.relu(self.map(x)))) + x


class Scaled(nn.Module):
    """A parameter used as it is and through a computation of its own, and a node with three outputs."""

    def __init__(self):
        super().__init__()
        self.map, self.scale = nn.Linear(C, 3 * C), nn.Parameter(torch.rand(C))

    def forward(self, x):
        a, b, c = self.map(x).chunk(3, -1)
        return torch.cat([a * self.scale, b, c[:, :, :1]], -1) * self.scale.exp().sum()


class Frozen(nn.Module):
    """A weight that is not trained, a bias that is, and running statistics."""

    def __init__(self):
        super().__init__()
        self.map, self.norm = nn.Linear(C, C), nn.BatchNorm1d(T)
        self.map.weight.requires_grad_(False)

    def forward(self, x):
        return self.norm(self.map(x))


class Unequal(nn.Module):
    """Parameters that have no part in the output, and an input that the first of them does not see."""

    def __init__(self):
        super().__init__()
        self.map, self.unused, self.start = nn.Linear(C, C), nn.Linear(C, C), nn.Parameter(torch.rand(1, 1, C))

    def forward(self, x):
        return torch.cat([self.start.tanh().expand(B, 1, C), self.map(x)], 1)


class Recurrent(nn.Module):
    """Weights used once for every position."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(C, C, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Gpt2Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.block = Block(ModelConfig(1, C, 2, 13, T, dropout, True), "h.0")
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, x):
        with drawing_from(KeyedRandom(1, 2, 3)):
            return self.block(x)


MODULES = {
    "linear": lambda: nn.Linear(C, 3),
    "no bias": lambda: nn.Sequential(nn.Linear(C, C, bias=False), nn.GELU(), nn.Linear(C, 3, bias=False)),
    "norm": lambda: nn.LayerNorm(C),
    "convolution": lambda: nn.Sequential(nn.Conv1d(T, T, 3, padding=1), nn.Tanh(), nn.Conv1d(T, 4, 1)),
    "attention": Attending,
    "block": lambda: Gpt2Block(0.0),
    "block with dropout": lambda: Gpt2Block(0.3),
    "parameter used twice": Twice,
    "parameter used as it is and computed with": Scaled,
    "recurrent": Recurrent,
    "frozen": Frozen,
    "unequal": Unequal,
    "nothing to train": lambda: nn.Softmax(-1),
    "input handed on": nn.Identity,
}
every_module = pytest.mark.parametrize("name", MODULES)


@pytest.fixture(autouse=True)
def exact():
    """float64, and the same values in every run."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def microbatches(module, count=3):
    """(input, gradient of the output) of each."""
    inputs = [torch.randn(B, T, C) for _ in range(count)]
    return [(x, torch.randn_like(module(x))) for x in inputs]


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def whole(module, pairs):
    """Inputs' and parameters' gradients by torch's own backward, microbatch after microbatch."""
    module.zero_grad()
    leaves = [x.clone().requires_grad_() for x, _ in pairs]
    for leaf, (_, gradient) in zip(leaves, pairs, strict=True):
        torch.autograd.backward(module(leaf), gradient)
    return [leaf.grad for leaf in leaves], gradients(module)


def halves(module, pairs):
    """The same by input halves first and all weight halves afterwards."""
    module.zero_grad()
    leaves = [x.clone().requires_grad_() for x, _ in pairs]
    halves_done = [
        backward_input([module(leaf)], [gradient], [leaf]) for leaf, (_, gradient) in zip(leaves, pairs, strict=True)
    ]
    assert not gradients(module) and all(leaf.grad is None for leaf in leaves)
    for _, half in halves_done:
        half.run()
    return [back for (back,), _ in halves_done], gradients(module)


def assert_equal(expected, got):
    for one, other in zip(expected[0], got[0], strict=True):
        assert torch.equal(one, other)
    assert expected[1].keys() == got[1].keys()
    for name in expected[1]:
        assert torch.equal(expected[1][name], got[1][name]), name


@every_module
def test_the_halves_give_what_the_whole_gives(name):
    module = MODULES[name]()
    pairs = microbatches(module)
    assert_equal(whole(module, pairs), halves(module, pairs))


PIECES = {
    "linear": lambda: nn.Linear(C, C),
    "norm": lambda: nn.LayerNorm(C),
    "gelu": nn.GELU,
    "convolution": lambda: nn.Conv1d(T, T, 3, padding=1),
    "attention": Attending,
    "twice": Twice,
    "frozen": Frozen,
}


class Tower(nn.Module):
    """Pieces one after another, some around a residual, some used again."""

    def __init__(self, names, residual, again):
        super().__init__()
        self.pieces = nn.ModuleList([PIECES[name]() for name in names])
        self.residual = residual
        self.order = [*range(len(names)), *again]

    def forward(self, x):
        for place, piece in enumerate(self.order):
            y = self.pieces[piece](x)
            x = x + y if self.residual[place % len(self.residual)] else y
        return x


@settings(max_examples=60, deadline=None)
@given(data=st.data(), names=st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=6))
def test_any_tower_of_modules_splits(data, names):
    again = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=2))
    module = Tower(names, data.draw(st.lists(st.booleans(), min_size=1, max_size=3)), again)
    pairs = microbatches(module, 2)
    assert_equal(whole(module, pairs), halves(module, pairs))


class Several(nn.Module):
    """Inputs handed on, one input unused, outputs beside the path that share parameters with it, one output twice."""

    def __init__(self):
        super().__init__()
        self.map, self.weight, self.alone = nn.Linear(C, C), nn.Parameter(torch.rand(C)), nn.Parameter(torch.rand(C))

    def forward(self, x, y, z):
        w = self.weight.exp()
        h = self.map(x) * w
        far = torch.tanh(self.map(h))
        return h, far, far, y, w * 2, self.weight, self.alone.sin(), x + h


def test_several_inputs_and_outputs_split():
    module, results = Several(), []
    inputs = [torch.randn(B, T, C) for _ in range(3)]
    for split in (False, True):
        module.zero_grad()
        x = [tensor.clone().requires_grad_() for tensor in inputs]
        outputs = module(*x)
        seeds = [torch.full_like(output, 0.5).cumsum(-1) for output in outputs]
        if split:
            input_gradients, half = backward_input(outputs, seeds, x)
            assert not gradients(module)
            half.run()
        else:
            torch.autograd.backward(outputs, seeds)
            input_gradients = [tensor.grad for tensor in x]
        results.append((input_gradients, gradients(module)))
    (whole_back, whole_own), (input_gradients, split_gradients) = results
    assert input_gradients[2] is None and whole_back[2] is None
    assert all(torch.equal(expected, got) for expected, got in zip(whole_back[:2], input_gradients[:2], strict=True))
    assert split_gradients.keys() == whole_own.keys()
    for name, gradient in split_gradients.items():
        torch.testing.assert_close(gradient, whole_own[name], rtol=1e-15, atol=0)


def test_gradients_are_added_where_they_lie():
    """A bucket's view stays the parameter's gradient."""
    module = nn.Linear(C, 3)
    pairs = microbatches(module)
    _, expected = whole(module, pairs)
    bucket = torch.zeros(3 * C)
    module.weight.grad, module.bias.grad = bucket.view(3, C), None
    for x, gradient in pairs:
        leaf = x.clone().requires_grad_()
        backward_input([module(leaf)], [gradient], [leaf])[1].run()
    assert torch.equal(bucket.view(3, C), expected["weight"])


def test_without_a_wanted_input_all_is_left_to_the_weight_half():
    """The first stage has ids for an input; its embedding is also the head where one stage holds everything."""
    module, ids = nn.Embedding(11, C), torch.tensor([[1, 3, 3]])
    results = []
    for split in (False, True):
        module.zero_grad()
        output = torch.softmax(nn.functional.linear(module(ids), module.weight), -1)
        gradient = torch.ones_like(output).cumsum(2)
        if split:
            back, half = backward_input([output], [gradient], [])
            assert not back and module.weight.grad is None
            half.run()
        else:
            torch.autograd.backward(output, gradient)
        results.append(module.weight.grad)
    assert torch.equal(*results)


class Watched(nn.Module):
    """Affine, a curve, affine; it keeps weak references to the memory between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.memory = nn.Linear(C, C), nn.Linear(C, C), {}

    def forward(self, x):
        y = self.first(x)
        z = torch.sin(y)
        self.memory = {"into the curve": memory_of(y), "into the second map": memory_of(z)}
        return self.second(z)

    def kept(self):
        return {name for name, memory in self.memory.items() if memory() is not None}


def memory_of(tensor):
    return weakref.ref(tensor.untyped_storage())


def test_the_input_half_frees_its_own_tensors_and_the_weight_half_the_rest():
    module, x = Watched(), torch.randn(B, T, C, requires_grad=True)
    output = module(x)
    gradient = torch.ones_like(output)
    assert module.kept() == {"into the curve", "into the second map"}
    (back,), half = backward_input([output], [gradient], [x])
    del output
    assert module.kept() == {"into the second map"}
    arrived = memory_of(gradient)
    del gradient
    assert arrived() is not None
    half.run()
    assert module.kept() == set() and arrived() is None and back is not None


@pytest.mark.parametrize("beside", [False, True], ids=["on the path", "beside the path"])
def test_a_reentrant_checkpoint_is_refused_where_the_backward_is_split(beside):
    module, x = nn.Linear(C, C), torch.randn(B, C, requires_grad=True)
    other = torch.randn(B, C, requires_grad=True)
    output = checkpoint(module, other if beside else x, use_reentrant=True) + x
    with pytest.raises(UsageError, match=r"use_reentrant=True, which .* cannot run; use use_reentrant=False, pp\.rec"):
        backward_input([output], [torch.ones_like(output)], [x])


def test_a_reentrant_checkpoint_runs_where_no_input_needs_a_gradient():
    module, x = nn.Linear(C, C), torch.randn(B, C, requires_grad=True)
    output = checkpoint(module, x, use_reentrant=True)
    backward_input([output], [torch.ones_like(output)], [])[1].run()
    assert module.weight.grad is not None
