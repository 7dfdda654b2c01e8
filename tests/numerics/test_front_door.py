"""`pipelined.train` beside a plain loop over microbatches, in float64: losses and the whole state after five steps.

The plain loop uses none of the runtime, except for the seeds of dropout (`layer_seed`).
"""

import functools
import gc
import itertools
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.training.segments.overlapping_steps import OverlappingSteps
from tests.numerics.trained import seed_cpu

STEPS, ROWS, WIDTH, SEED = 5, 16, 8, 3
SCHEDULES = ("gpipe", "one_f_one_b", "chimera", "zb_h1", "chimera_w")
SHARED = "shared"


def linear():
    return nn.Linear(WIDTH, WIDTH)


def residual():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

        def forward(self, x):
            return x + self.inner(x)

    return Residual()


def row():
    """Linear and frozen layers, dropout, layers without parameters, and one layer that is used twice."""
    used_twice = nn.Linear(WIDTH, WIDTH)

    def first():
        used_twice.reset_parameters()  # it draws the initial values anew, under the seed of this build
        return used_twice

    return [
        first,
        nn.Tanh,
        residual,
        lambda: nn.Dropout(0.3),
        lambda: linear().requires_grad_(False),
        linear,
        lambda: nn.Sequential(linear(), nn.Dropout(0.2)),
        nn.GELU,
        lambda: used_twice,
        linear,
    ]


def tied_row():
    """Two layers that share all parameters, with others between them."""
    ends = pp.tied(SHARED, linear)
    return [ends, nn.Tanh, lambda: nn.Dropout(0.3), linear, nn.GELU, linear, ends, linear]


class Begin(nn.Module):
    """One tensor in; a dict of tensors out, some without a gradient, and a plain value."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return {"h": self.inner(x), "skips": [], "sign": x > 0, "scale": x.abs().mean(1, keepdim=True), "power": 2}


class Down(nn.Module):
    """Keeps what it takes for a layer of a later stage."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return {**x, "h": torch.tanh(self.inner(x["h"])), "skips": [*x["skips"], x["h"]]}


class Up(nn.Module):
    """Adds what a layer of an earlier stage gave, which the stages between only handed on."""

    def __init__(self):
        super().__init__()
        self.inner, self.skip, self.dropout = linear(), linear(), nn.Dropout(0.2)

    def forward(self, x):
        *skips, skip = x["skips"]
        h = self.dropout(self.inner(x["h"])) + self.skip(skip) ** x["power"] * x["scale"]
        return {**x, "h": torch.where(x["sign"], h, -h), "skips": skips}


class End(nn.Module):
    def forward(self, x):
        return x["h"]


def u_net():
    """A row in which later layers read outputs of earlier ones; every layer but the last gives a dict."""
    return [Begin, Down, Down, Down, Up, Up, Up, End]


def unbiased():
    return nn.Linear(WIDTH, WIDTH, bias=False)


class Normed(nn.Module):
    """Batch norms with and without a momentum, the first used twice, and an instance norm.

    A bias before a norm has a gradient of rounding errors alone, which Adam would make as large as any other.
    """

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, momentum=None)
        self.inner, self.instance = unbiased(), nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x):
        x = self.before(self.inner(self.before(x)))
        return self.after(x + self.instance(x.unsqueeze(1)).squeeze(1))


def norms():
    middle = [nn.Tanh, Normed, lambda: nn.Dropout(0.2), unbiased, lambda: nn.BatchNorm1d(WIDTH, momentum=0.3)]
    return [unbiased, Normed, *middle, nn.GELU, Normed, linear]


def batches():
    generator = torch.Generator().manual_seed(7)
    shape = (ROWS, WIDTH)
    pairs = [(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(STEPS)]
    return [(x.double(), y.double()) for x, y in pairs]


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


@functools.cache
def plain(microbatches, clip=0.0, layers=row, loss=nn.functional.mse_loss, keyed=False):
    """Losses and state of a loop on one process. The loss of a step is the sum of all losses over all counts."""
    builders, model = layers(), nn.Sequential()
    seed_cpu(SEED)
    for number, build in enumerate(builders):
        if keyed:
            seed_cpu(pp.initial_seed(SEED, str(number)))
        model.append(build().double())
    if layers is tied_row:
        model[6].weight, model[6].bias = model[0].weight, model[0].bias
    optimizer = adam([parameter for parameter in model.parameters() if parameter.requires_grad])
    losses = []
    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        total, count = 0.0, 0
        for number, (x, y) in enumerate(zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)):
            for name, layer in model._modules.items():  # named_children would leave out the second use of a layer
                seed_cpu(pp.layer_seed(SEED, step, number, name))
                x = layer(x)
            score = loss(x, y)
            total, count = (
                (total + score, count + 1) if loss is nn.functional.mse_loss else (total + score[0], count + score[1])
            )
        (total / count).backward()
        losses.append((total / count).item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return losses, model.state_dict()


def trained(layers=row, initial="ordered", **arguments):
    defaults = {"loss": nn.functional.mse_loss, "optimizer": adam, "dtype": torch.float64, "seed": SEED}
    return pp.train(pp.Sequential(layers(), initial=initial), batches(), **{**defaults, **arguments})


def require_equal(done, expected, tolerance=1e-12):
    losses, state = expected
    assert done.losses == pytest.approx(losses, rel=0, abs=1e-12)
    assert list(done.state_dict()) == list(state)
    for name, value in done.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=tolerance)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("schedule", "depth", "width"), list(itertools.product(SCHEDULES, (2, 4), (1, 2))))
def test_any_schedule_trains_as_a_plain_loop_does(schedule, depth, width):
    done = trained(schedule=schedule, depth=depth, width=width, microbatches=4)
    require_equal(done, plain(4 * width))


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_recomputed_activations_have_the_same_dropout(schedule):
    require_equal(trained(schedule=schedule, depth=2, microbatches=4, recompute=True), plain(4))


def test_a_state_is_written_to_a_file_instead_of_held_by_rank_0(tmp_path):
    done = trained(schedule="chimera", depth=2, microbatches=4, export=tmp_path / "state.pt")
    assert done.state is None
    require_equal(done, plain(4))
    state = done.state_dict()
    assert str(tmp_path / "state.pt") in Path("/proc/self/maps").read_text(), f"{len(state)} tensors are in memory"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        pytest.param("none/state.pt", "No such file or directory", id="no directory"),
        pytest.param(".", "it is a directory", id="a directory"),
        pytest.param("/proc/state.pt", "No such file or directory", id="a directory that takes no file"),
    ],
)
def test_a_file_that_cannot_be_written_at_the_end_is_refused_before_the_first_step(tmp_path, path, says):
    steps = []
    with pytest.raises(pp.UsageError, match=re.escape(f"cannot write {tmp_path / path} ({says}); name a file")):
        trained(schedule="gpipe", depth=2, microbatches=4, export=tmp_path / path, report=steps.append)
    assert not steps


def marked(layers):
    """The row of which every second layer is recomputed; one that is used twice, or tied, too."""
    return lambda: [pp.recomputed(layer) if number % 2 == 0 else layer for number, layer in enumerate(layers())]


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("schedule", "layers"),
    [
        ("one_f_one_b", row),
        ("zb_h1", row),
        ("chimera_w", tied_row),
        ("zb_h1", norms),
        ("gpipe", u_net),
        ("pipedream_2bw", row),
    ],
)
def test_marked_layers_are_recomputed_with_the_bits_of_those_that_are_not(schedule, layers):
    done, kept = (trained(each, schedule=schedule, depth=2, microbatches=4) for each in (marked(layers), layers))
    assert done.losses == kept.losses
    for name, value in kept.state_dict().items():
        assert torch.equal(value, done.state_dict()[name]), name


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("schedule", "more"),
    [("gpipe", {}), ("chimera", {"recompute": True}), ("zb_h1", {}), ("zb_h1", {"recompute": True}), ("chimera_w", {})],
)
def test_dicts_of_tensors_between_stages_train_as_a_plain_loop_does(schedule, more):
    done = trained(u_net, schedule=schedule, depth=4, microbatches=4, **more)
    require_equal(done, plain(4, layers=u_net))


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("schedule", "depth", "width", "recompute"),
    [
        ("gpipe", 2, 2, False),
        ("one_f_one_b", 4, 1, True),
        ("chimera", 4, 1, False),
        ("chimera", 2, 2, True),
        ("zb_h1", 2, 1, True),
        ("chimera_w", 4, 1, False),
    ],
)
def test_running_statistics_are_those_of_microbatches_in_order(schedule, depth, width, recompute):
    done = trained(norms, schedule=schedule, depth=depth, width=width, microbatches=4, recompute=recompute)
    require_equal(done, plain(4 * width, layers=norms), tolerance=1e-10)  # a norm over two rows leaves little gradient


def test_running_statistics_go_on_at_another_shape(tmp_path):
    trained(norms, steps=2, schedule="chimera", depth=2, microbatches=4, checkpoint=tmp_path)
    rest = trained(norms, steps=STEPS, schedule="gpipe", depth=1, microbatches=4, resume=tmp_path)
    for name, value in rest.state_dict().items():
        torch.testing.assert_close(value, plain(4, layers=norms)[1][name], rtol=0, atol=1e-12)


def positive_targets(output, targets):
    """The squared error where the target is positive, and how many are: another number in each microbatch."""
    counted = targets > 0
    return ((output - targets) ** 2)[counted].sum(), counted.sum()


@pytest.mark.parametrize(
    ("schedule", "width", "more"),
    [("gpipe", 2, {}), ("chimera", 1, {"clip": 0.05}), ("zb_h1", 1, {"recompute": True}), ("chimera_w", 2, {})],
)
def test_a_loss_with_a_count_is_that_of_the_whole_batch(schedule, width, more):
    done = trained(schedule=schedule, depth=2, width=width, microbatches=4, loss=positive_targets, **more)
    require_equal(done, plain(4 * width, more.get("clip", 0.0), loss=positive_targets))


@pytest.mark.parametrize(
    ("loss", "schedule", "message"),
    [
        (positive_targets, "pipedream", "pipedream updates a stage before all counts of a step are known"),
        (lambda output, targets: output - targets, "gpipe", "the loss gives no scalar"),
        (lambda output, targets: 0.5, "gpipe", r"the loss gives no scalar \(float\)"),
    ],
)
def test_a_loss_that_cannot_train_is_refused(loss, schedule, message):
    with pytest.raises(pp.UsageError, match=message):
        trained(schedule=schedule, depth=2, microbatches=2, loss=loss)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("initial", ["ordered", "keyed"])
@pytest.mark.parametrize(("schedule", "depth"), [("one_f_one_b", 4), ("chimera", 2), ("zb_h1", 4)])
def test_tied_layers_have_one_parameter_however_they_are_built(initial, schedule, depth):
    done = trained(tied_row, initial, schedule=schedule, depth=depth, microbatches=4)
    require_equal(done, plain(4, layers=tied_row, keyed=initial == "keyed"))


def test_without_a_flush_a_step_is_reported_before_the_next_one_is_complete(monkeypatch):
    order, wait_for_sums = [], OverlappingSteps.wait_for_sums

    async def noted(self, number):
        order.append(f"wait for {number}")
        return await wait_for_sums(self, number)

    monkeypatch.setattr(OverlappingSteps, "wait_for_sums", noted)
    trained(schedule="pipedream", depth=1, steps=3, report=lambda report: order.append(f"report {report.step}"))
    assert order == [f"{what} {step}" for step in range(3) for what in ("wait for", "report")]


def test_gradients_are_clipped_by_the_norm_over_all_stages():
    require_equal(trained(schedule="chimera", depth=4, microbatches=4, clip=0.05), plain(4, clip=0.05))


def test_any_optimizer_and_scheduler_resumes_at_another_depth(tmp_path):
    """Six steps in one run, and three with a depth of 2, three with a depth of 4: equal to the last bit."""

    def momentum(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def halved(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    common = {"optimizer": momentum, "lr_scheduler": halved, "microbatches": 4}
    whole = trained(steps=6, depth=2, **common)
    trained(steps=3, depth=2, checkpoint=tmp_path, **common)
    rest = trained(steps=6, depth=4, checkpoint=tmp_path, resume=tmp_path, **common)
    assert rest.losses == pytest.approx(whole.losses[3:], rel=0, abs=1e-14)
    for name, value in rest.state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[name], rtol=0, atol=1e-14)


def test_a_run_without_a_step_left_is_saved(tmp_path):
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    trained(steps=0, depth=2, checkpoint=begun)
    whole = trained(steps=2, depth=2, resume=begun, checkpoint=begun)
    again = trained(steps=2, depth=2, resume=begun, checkpoint=ended)
    assert not again.losses and again.steps == 2 and (ended / "step-00000002").is_dir()
    torch.testing.assert_close(trained(steps=2, depth=1, resume=ended).state_dict(), whole.state_dict())


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    """SGD went on without its momentum, and AdamW failed in its first update, for want of moments."""

    def momentum(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    trained(steps=2, depth=2, microbatches=4, checkpoint=tmp_path, optimizer=momentum)
    fact = r"step-00000002 has the state of another optimizer \(saved: SGD, here: AdamW\); resume with SGD, or"
    with pytest.raises(pp.UsageError, match=fact):
        trained(steps=4, depth=2, microbatches=4, resume=tmp_path)


def test_an_nn_sequential_trains_as_it_is():
    builders = row()
    torch.manual_seed(SEED)
    model = nn.Sequential(*[build() for build in builders])
    require_equal(trained_as(model, depth=4, microbatches=4), plain(4))
    assert all(parameter.grad is None for parameter in model.parameters())


def trained_as(model, **arguments):
    return pp.train(
        model,
        batches(),
        loss=nn.functional.mse_loss,
        optimizer=adam,
        dtype=torch.float64,
        seed=SEED,
        **arguments,
    )


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_a_schedule_without_a_flush_trains_the_first_step_of_a_plain_loop(schedule):
    """One update for a step of one microbatch: the weights of the first loss are the initial ones."""
    done = trained(schedule=schedule, depth=2, microbatches=2, steps=1)
    first = plain(2)[0][0]
    assert len(done.losses) == 1
    assert done.losses[0] == pytest.approx(first, rel=0, abs=0.1)


@pytest.mark.in_turns(6)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
@pytest.mark.parametrize(
    ("schedule", "depth", "recompute"),
    # deeper, time decides the delays of async_1f1b
    [("pipedream_2bw", 2, False), ("pipedream_2bw", 2, True), ("async_1f1b", 1, False)],
)
def test_compiled_stages_with_versions_of_weights_are_compiled_once_and_train_alike(schedule, depth, recompute):
    """However many versions there are. A stage that recomputes has a graph with gradients, and one without."""
    given = {"schedule": schedule, "depth": depth, "microbatches": 4, "recompute": recompute}

    def layers():
        return [linear, nn.Tanh, linear, nn.Tanh]

    plain = trained(layers, **given)
    torch._dynamo.reset()  # what an earlier test compiled would not be compiled again
    torch._dynamo.utils.counters.clear()
    found = trained(layers, **given, compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == depth * (1 + recompute)
    assert found.losses == pytest.approx(plain.losses, rel=0, abs=1e-12)


def test_the_layers_of_other_ranks_are_freed_before_the_first_step():
    built, alive = [], []

    def layer():
        made = linear()
        built.append(weakref.ref(made))
        return made

    def count(report):
        gc.collect()
        alive.append(sum(one() is not None for one in built))

    pp.train(
        [layer] * 4,
        batches(),
        loss=nn.functional.mse_loss,
        optimizer=adam,
        depth=2,
        steps=1,
        dtype=torch.float64,
        report=count,
    )
    assert (len(built), alive) == (4, [0])


@pytest.mark.parametrize(("schedule", "depth", "width"), [("one_f_one_b", 2, 2), ("chimera", 4, 1)])
def test_a_feed_of_microbatches_trains_as_their_batches_do(schedule, depth, width):
    held, rows = {"inputs": set(), "targets": set()}, ROWS // (4 * width)

    def part(which, index):
        def rows_of(step, microbatch):
            held[which].add(microbatch)
            return batches()[step][index][microbatch * rows : (microbatch + 1) * rows]

        return rows_of

    given = pp.Feed(part("inputs", 0), part("targets", 1))
    arguments = {"loss": nn.functional.mse_loss, "optimizer": adam, "dtype": torch.float64, "seed": SEED}
    done = pp.train(row(), given, steps=STEPS, schedule=schedule, depth=depth, width=width, microbatches=4, **arguments)
    require_equal(done, plain(4 * width))
    assert held["inputs"] == held["targets"] == set(range(4 * width))
