"""A traced module that is cut equals the module: in one process, in float64, part after part."""

import copy
import functools
from functools import partial

import pytest
import torch
from torch import nn

from pipelined.random.keyed_random import KeyedRandom, layer_seed
from pipelined.random.torch_random import TorchRandom
from pipelined.training.job.check_model import ModelError
from pipelined.training.models.traced_model import Traced

ROWS, WIDTH, SEED, STEP, MICROBATCH = 6, 4, 3, 2, 5


class Block(nn.Module):
    """A skip around writes in place, and one dropout that is called twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.3)

    def forward(self, x, scale):
        y = self.drop(self.act(self.norm(self.inner(x))))
        y = self.drop(self.outer(y))
        y += x * scale
        return y


class Net(nn.Module):
    """Tied weights, a frozen layer, buffers, an unused layer, values that each block reads, and a view by the rows."""

    def __init__(self):
        super().__init__()
        self.embed, self.first = nn.Embedding(7, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head, self.unused = nn.Linear(WIDTH, 7, bias=False), nn.Linear(1, 1)
        self.head.weight = self.embed.weight
        self.register_buffer("middle", torch.full((1,), 0.5), persistent=False)

    def forward(self, x):
        with torch.no_grad():
            scale = self.middle * torch.arange(1, 1 + WIDTH, device=x.device)
        rows = x.shape[0]
        x = self.first(self.embed(x).view(rows, 2, WIDTH).sum(1))
        for block in self.blocks:
            x = block(x, scale + torch.tensor(1.0))
        return {"logits": self.head(x.view(rows, WIDTH)), "none": None}


@functools.cache
def traced():
    torch.manual_seed(0)
    return Traced(Net(), tokens(4))


def tokens(rows):
    return torch.arange(2 * rows).view(rows, 2) % 7


def parts(model, device="cpu"):
    return [model.build(range(layer, layer + 1), torch.float64, device, 0) for layer in range(model.layers)]


def through(modules, x, random=None):
    for module in modules:
        x = module(x) if random is None else TorchRandom(torch.device("cpu")).run(partial(module, x), random, "part")
    return x


def seeded(module):
    """The plain module with torch's generator seeded before each dropout, by the public key function."""
    calls = {}

    def before(name, inner, arguments):
        call = calls[name] = calls.get(name, -1) + 1
        torch.manual_seed(layer_seed(SEED, STEP, MICROBATCH, f"{name}@{call}" if call else name))

    for name, inner in module.named_modules():
        if isinstance(inner, nn.Dropout):
            inner.register_forward_pre_hook(functools.partial(before, name))
    return module


def test_every_part_together_equals_the_module_and_its_gradients():
    plain = seeded(copy.deepcopy(traced().module).double())
    modules = parts(traced().bind(None))
    assert len(modules) > 4
    expected = plain(tokens(ROWS))
    got = through(modules, tokens(ROWS), KeyedRandom(SEED, STEP, MICROBATCH))
    assert torch.equal(got["logits"], expected["logits"])
    assert got["none"] is None
    for output in (got, expected):
        output["logits"].square().sum().backward()
    gradients = {}
    for name, parameter in (pair for module in modules for pair in module.named_parameters()):
        if parameter.grad is not None:
            gradients[name] = gradients.get(name, 0) + parameter.grad
    plain_gradients = {
        name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None
    }
    assert gradients.keys() == plain_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=0, atol=1e-13)
    buffers = dict(plain.named_buffers())
    for name, buffer in (pair for module in modules for pair in module.named_buffers() if pair[0] in buffers):
        torch.testing.assert_close(buffer, buffers[name], rtol=0, atol=0)


def test_evaluation_has_a_graph_of_its_own():
    modules = [module.eval() for module in parts(traced().bind(None))]
    plain = copy.deepcopy(traced().module).double().eval()
    assert torch.equal(through(modules, tokens(2))["logits"], plain(tokens(2))["logits"])
    assert traced().module.training


def test_a_part_has_the_names_of_the_module_and_the_same_tensors_on_the_meta_device():
    on_cpu, on_meta = parts(traced().bind(None)), parts(traced().bind(None), "meta")
    names = {name for module in on_cpu for name, _ in module.named_parameters()}
    plain = {name for name, _ in traced().module.named_parameters()}
    assert plain - names == {"unused.weight", "unused.bias"}
    assert names <= plain
    for part, meta_part in zip(on_cpu, on_meta, strict=True):
        assert {n: t.shape for n, t in part.state_dict().items()} == {
            n: t.shape for n, t in meta_part.state_dict().items()
        }


def test_the_state_loads_into_the_module():
    model = traced().bind(None)
    state = {name: value for module in parts(model) for name, value in module.state_dict().items()}
    Net().double().load_state_dict(model.state_dict(state))


def test_a_module_is_cut_where_the_fewest_tensors_cross_and_never_before_a_write():
    crossing = {boundary.name: len(boundary.live) for boundary in traced().program().graph.boundaries}
    assert crossing["blocks.0"] == crossing["blocks.1"] == crossing["head"] == 1
    assert crossing["blocks.0.outer"] == 2
    assert "blocks.0.act" not in crossing
    assert {"blocks.0", "blocks.1", "head"} <= set(traced().cuts)


def test_costs_count_operations_and_parameters_once():
    costs = dict(zip(["embed", *traced().cuts], traced().bind(None).costs(1), strict=True))
    assert costs["head"] == 1 + 2 * WIDTH * 7  # the embedding has the parameters
    assert costs["blocks.1.outer"] == 1 + 2 * WIDTH * WIDTH + WIDTH * WIDTH + WIDTH


class Chain(nn.Module):
    def __init__(self, between=lambda x: x):
        super().__init__()
        self.first, self.second, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


def test_code_that_computes_in_its_own_dtype_is_traced_in_the_dtype_of_the_training():
    model = Traced(Chain(lambda x: x + torch.zeros(1, dtype=x.dtype).to(x.dtype)), torch.zeros(2, WIDTH)).bind(None)
    assert through(parts(model), torch.zeros(2, WIDTH).double()).dtype == torch.float64


def test_each_further_draw_of_a_module_has_a_name_of_its_own():
    chain = Chain(lambda x: nn.functional.dropout(nn.functional.dropout(x, 0.5), 0.5))
    program = Traced(nn.Sequential(chain), torch.zeros(2, WIDTH)).program()
    assert sorted(program.graph.draw_names.values()) == ["0", "0+1"]


class Cache:
    """What generation would read again, which no torch knows."""


class Cached(nn.Identity):
    def forward(self, x):
        return x, Cache()


def branched(x):
    return -x if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (
            Chain(branched),
            torch.zeros(2, WIDTH),
            r"test_traced_model.py, line \d+ \(return -x if x.sum\(\) > 0 else x\): ",
        ),
        (Chain(lambda x: torch.from_numpy(x.detach().numpy())), torch.zeros(2, WIDTH), r"line \d+ .*numpy\(\)"),
        (Chain(), torch.zeros(2, WIDTH + 1), "Chain cannot be traced: .* let that line"),
        (Chain(), (torch.zeros(2, WIDTH),) * 2, "Chain cannot be traced: too many positional arguments"),
        (
            nn.Sequential(Chain(), Cached()),
            torch.zeros(2, WIDTH),
            r"returns a Cache; let it return .*config.use_cache = False",
        ),
        (Chain, torch.zeros(2, WIDTH), "a type cannot be traced; give pp.trace an nn.Module"),
    ],
)
def test_a_module_that_cannot_be_traced_is_refused_with_the_line_of_its_code(module, example, message):
    with pytest.raises(ModelError, match=message):
        Traced(module, example)


@pytest.mark.parametrize(
    ("between", "inputs", "message"),
    [
        (
            lambda x: x,
            torch.zeros(2, WIDTH + 1),
            r"shape \(2, 5\) .* traced for \(. or more, 4\); give pp.trace an example",
        ),
        (lambda x: x, torch.zeros(2, WIDTH, dtype=torch.long), "inputs of torch.int64 for a model .* torch.float32"),
        (lambda x: x, {"x": torch.zeros(2, WIDTH)}, r"another structure .*inputs: a dict of x, example: a Tensor"),
        (
            lambda x: x + torch.zeros(2, 1),
            torch.zeros(4, WIDTH),
            r"traced for \(2, 4\), as its code works for one number",
        ),
    ],
)
def test_inputs_that_were_not_traced_are_refused_with_both_shapes(between, inputs, message):
    with pytest.raises(ModelError, match=message):
        Traced(Chain(between), torch.zeros(2, WIDTH)).bind(None, inputs)


def test_rows_that_are_open_may_be_any_number():
    model = Traced(Chain(), torch.zeros(4, WIDTH)).bind(None, torch.zeros(9, WIDTH))
    assert through(parts(model), torch.zeros(9, WIDTH).double()).shape == (9, WIDTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_part_has_the_hooks_of_the_modules_parameters(dtype):
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    module[0].weight.register_hook(torch.zeros_like)
    example = torch.ones(ROWS, WIDTH)
    model = Traced(module, example).bind(nn.functional.mse_loss)
    part = model.build(range(model.layers), dtype, "cpu", None)
    part(example.to(dtype)).sum().backward()
    assert part.get_parameter("0.weight").grad.eq(0).all()
    assert part.get_parameter("1.weight").grad.ne(0).any()
