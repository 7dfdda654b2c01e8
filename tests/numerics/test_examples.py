"""The models of examples/ beside a plain loop over microbatches, in float64: losses and state after five steps.

A ResNet with batch norms and skips, and a Llama of `transformers` with tied embeddings; both with dropout, and with a
frozen layer. The plain loop runs the module as it is. It uses none of the runtime, except for the seeds of dropout.
"""

import functools
import itertools
import runpy
import types

import pytest
import torch

import pipelined as pp
from tests.launching import ROOT
from tests.numerics.trained import seed_cpu

STEPS, ROWS, TOKENS, SEED = 5, 16, 8, 3
SCHEDULES = ("gpipe", "one_f_one_b", "chimera", "zb_h1", "chimera_w")
GRID = list(itertools.product(SCHEDULES, (2, 4), (1, 2)))
SAMPLE = [GRID[number] for number in (1, 6, 11, 12, 18)]
"""Every schedule once; the rest of the grid is for --full."""
FROZEN = {"resnet": "2.", "llama": "model.layers.1.mlp."}


@functools.cache
def example(name):
    """What an example gives to `pp.train`, in float64, with a frozen layer and fewer rows."""
    given = types.SimpleNamespace()

    def train(model, batches, *, loss, optimizer, **rest):
        given.module, given.batches, given.loss, given.optimizer = model, batches, loss, optimizer
        return types.SimpleNamespace(losses=[0.0], state_dict=model.state_dict)  # the rest of the example uses them

    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.setattr(pp, "train", train, raising=False)
        patch.setattr(pp, "trace", lambda module, example: module, raising=False)
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    given.batches = [(cut(x), cut(y)) for x, y in itertools.islice(itertools.cycle(given.batches), STEPS)]
    module = given.module.double()
    for path, parameter in module.named_parameters():
        parameter.requires_grad_(not path.startswith(FROZEN[name]))
    given.initial = {path: value.clone() for path, value in module.state_dict().items()}
    given.traced = pp.trace(module, given.batches[0][0])
    return given


def cut(x):
    return x[:ROWS].double() if x.is_floating_point() else x[:ROWS, :TOKENS] if x.dim() == 2 else x[:ROWS]


@functools.cache
def plain(name, microbatches):
    """Losses and state of a loop over microbatches on one process."""
    given, key = example(name), {}
    module = given.module
    hooks = [inner.register_forward_pre_hook(seed(key, path)) for path, inner in module.named_modules() if draws(inner)]
    assert hooks
    optimizer = given.optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
    losses = []
    for step, (inputs, targets) in enumerate(given.batches):
        optimizer.zero_grad()
        losses.append(0.0)
        for number, (x, y) in enumerate(zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)):
            key.update(step=step, microbatch=number)
            loss = given.loss(module(x), y) / microbatches
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    for hook in hooks:
        hook.remove()
    state = {path: value.clone() for path, value in module.state_dict().items()}
    module.load_state_dict(given.initial)
    return losses, state


def draws(inner):
    return isinstance(inner, torch.nn.Dropout) or hasattr(inner, "attention_dropout")


def seed(key, path):
    def before(module, arguments):
        seed_cpu(pp.layer_seed(SEED, key["step"], key["microbatch"], path))

    return before


def require_equal(name, schedule, depth, width, **more):
    given = example(name)
    losses, state = plain(name, 4 * width)
    done = pp.train(
        given.traced,
        given.batches,
        loss=given.loss,
        optimizer=given.optimizer,
        schedule=schedule,
        depth=depth,
        width=width,
        microbatches=4,
        dtype=torch.float64,
        seed=SEED,
        **more,
    )
    assert done.losses == pytest.approx(losses, rel=0, abs=1e-10)
    assert done.state_dict().keys() == state.keys()
    for path, value in done.state_dict().items():
        torch.testing.assert_close(value, state[path], rtol=0, atol=1e-10)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("name", ["resnet", "llama"])
@pytest.mark.parametrize(
    ("schedule", "depth", "width"),
    [pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.full) for case in GRID],
)
def test_the_model_of_an_example_trains_as_a_plain_loop_does(name, schedule, depth, width):
    require_equal(name, schedule, depth, width)


@pytest.mark.parametrize("name", ["resnet", "llama"])
def test_recomputed_activations_of_a_traced_model_have_the_same_dropout(name):
    require_equal(name, "zb_h1", 2, 1, recompute=True)
