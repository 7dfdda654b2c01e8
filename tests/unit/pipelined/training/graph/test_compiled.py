"""A compiled stage computes what the stage computes, in one piece, or is refused."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan, PlanError
from pipelined.random.keyed_random import KeyedRandom, dropout
from pipelined.training.graph.compiled import CompiledModule, require_compilable
from pipelined.training.stages.stage import Stage


class Squares:
    """A loss, as a model has it."""

    def loss(self, output, targets):
        return (output - targets).square().mean()


class Drops(nn.Linear):
    def forward(self, x):
        return dropout(super().forward(x), 0.5, f"{self.in_features} drops")


def trained(compile, recompute):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double()
    stage = Stage(Squares(), module, 0, 1, torch.device("cpu"), compile=compile, recompute=recompute)
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    losses = [stage.forward((0, n), x[n], KeyedRandom(1, 0, n), -x[n]).tensors[0] for n in range(3)]
    for n in range(3):
        stage.backward((0, n), None, 0.5, KeyedRandom(1, 0, n), -x[n])
    return [*losses, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
def test_a_stage_is_compiled_once_for_all_microbatches_and_gives_the_same_to_rounding():
    torch._dynamo.utils.counters.clear()
    plain, compiled = trained(False, False), trained(True, False)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for expected, got in zip(plain, compiled, strict=True):
        torch.testing.assert_close(expected, got, rtol=0, atol=1e-14)


def test_more_stages_than_torch_compiles_by_default_are_compiled_in_a_thread_of_a_rank(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    stages = [CompiledModule(nn.Linear(width, width), width) for width in range(1, 11)]
    with ThreadPoolExecutor(1) as thread:
        widths = thread.submit(lambda: [run(torch.ones(1, n)).shape[1] for n, run in enumerate(stages, 1)]).result()
    assert widths == list(range(1, 11))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
def test_one_compiled_function_has_the_masks_of_every_microbatch_and_step_to_the_bit():
    torch._dynamo.utils.counters.clear()
    module = nn.Sequential(Drops(64, 48), Drops(48, 64))
    plain, compiled = (Stage(Squares(), module, 0, 2, torch.device("cpu"), compile=each) for each in (False, True))
    masks = []
    for key in (KeyedRandom(1, 0, 0), KeyedRandom(1, 0, 1), KeyedRandom(1, 7, 0)):
        x = torch.ones(3, 5, 64)
        expected, got = (stage.forward((0, 0), x, key).tensors[0] for stage in (plain, compiled))
        assert torch.equal(got.eq(0), expected.eq(0))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
        masks.append(got.eq(0))
    assert 0.4 < masks[0].float().mean() < 0.6
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
def test_a_compiled_gpt2_with_dropout_has_the_losses_and_gradients_of_one_that_is_not():
    torch._dynamo.utils.counters.clear()
    plain, compiled = (train_gpt2(compile) for compile in (False, True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for expected, got in zip(plain, compiled, strict=True):
        torch.testing.assert_close(expected, got, rtol=0, atol=1e-12)


def train_gpt2(compile):
    """Losses and gradients of two microbatches, in float64."""
    config = ModelConfig(vocab=13, positions=8, layers=1, heads=2, d_model=8, dropout=0.3)
    model, device = GPT2(config), torch.device("cpu")
    module = model.build(range(model.layers), torch.float64, device, seed=3)
    stage, ids = Stage(model, module, 0, 1, device, compile=compile), torch.arange(32).reshape(2, 2, 8) % 13
    keys = [KeyedRandom(1, 0, n) for n in range(2)]
    losses = [stage.forward((0, n), ids[n], keys[n], ids[n]).tensors[0] for n in range(2)]
    for n in range(2):
        stage.backward((0, n), None, 0.5, keys[n], ids[n])
    return [*losses, *(parameter.grad for parameter in module.parameters())]


def test_dropout_of_torch_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    stage = Stage(Squares(), module, 0, 2, torch.device("cpu"), compile=True)
    with pytest.raises(UsageError, match=r"stage 0 draws torch's random numbers.*; use dropout of pipelined.random"):
        stage.forward((0, 0), torch.ones(2, 4), KeyedRandom(1, 0, 0))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_an_error_of_the_compiler_is_told_with_the_stage_and_the_remedy(direction, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=failing(direction)))
    stage = Stage(Squares(), nn.Linear(4, 4), 3, 4, torch.device("cpu"), compile=True)
    x = torch.ones(2, 4)
    with pytest.raises(UsageError, match=r"cannot compile stage 3 in one piece .*no C\+\+ compiler.*leave compile out"):
        stage.forward((0, 0), x, KeyedRandom(1, 0, 0), x)
        assert direction == "backward"
        stage.backward((0, 0), None, 1.0, KeyedRandom(1, 0, 0), x)


def failing(direction):
    """A backend of torch's compiler that fails at a forward, or at the first run of its backward, as inductor does."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.exc import InductorError

    def compiles(graph, inputs):
        return make_boxed_func(graph.forward)

    def fails(graph, inputs):
        raise InductorError(RuntimeError("no C++ compiler"), inspect.currentframe())

    return fails if direction == "forward" else aot_autograd(fw_compiler=compiles, bw_compiler=fails)


@pytest.mark.parametrize(
    ("plan", "given", "told"),
    [
        (Plan("zb_h1", 2, 1, 2, 4), {}, r"a whole backward \(zb_h1, tensor: 1\)"),
        (Plan("gpipe", 1, 1, 2, 4, tensor=2), {}, r"is one rank's.*tensor: 2"),
        (Plan("gpipe", 2, 1, 2, 4), {"exact": True}, "exact sums need the same roundings"),
        (Plan("gpipe", 2, 1, 2, 4), {"attention": True}, "chooses itself what runs again"),
    ],
    ids=str,
)
def test_what_is_not_compiled_is_refused(plan, given, told):
    with pytest.raises((PlanError, UsageError), match=told):
        require_compilable(plan, **{"exact": False, "attention": False, **given})


def test_without_a_compiler_it_is_refused_before_anything_runs(monkeypatch):
    require_compilable(Plan("chimera", 2, 1, 2, 4), exact=False, attention=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"which is missing \(CXX: no-such-compiler\); install g\+\+"):
        require_compilable(Plan("gpipe", 2, 1, 2, 4), exact=False, attention=False)
