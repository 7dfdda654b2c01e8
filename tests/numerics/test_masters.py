"""An optimizer of copies in host memory: the bits of the run without, one step late, and resumed to the bit."""

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch

import pipelined as pp
from pipelined.errors import UsageError
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.state.checkpoints.whole_state import gather_state
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics.plain import OPTIMIZER, AdamW, Case, Feed
from tests.numerics.teams import TeamCase
from tests.numerics.test_divided_updates import losses_and_digest
from tests.numerics.test_front_door import adam, trained
from tests.numerics.trained import on_every_rank, on_ranks

F64 = torch.float64
DELAYED = {"offload_optimizer": True, "delayed_update": True}
CASES = [
    (Case("one_f_one_b", 2, 1, 2, layers=1, dropout=0.1), {}),
    (Case("chimera", 2, 1, 2, layers=1, recompute=True), {"shard_optimizer": True, "all_reduce": "ring"}),
    (Case("zb_h1", 2, 1, 3, layers=1), {"exact_sums": True}),
    (
        TeamCase("gpipe", 1, 1, 2, layers=1, layout="data+zero2", dropout=0.2),
        {"shard_optimizer": True, "all_reduce": "ring"},
    ),
]


def names(case):
    return case.schedule if isinstance(case, Case) else "-".join(case) or "plain"


@pytest.mark.parametrize(("case", "numerics"), CASES, ids=names)
def test_an_offloaded_update_has_the_bits_of_one_in_place(case, numerics):
    expected = on_every_rank(case, losses_and_digest, **numerics)
    assert on_every_rank(case, losses_and_digest, offload_optimizer=True, **numerics) == expected


@pytest.mark.parametrize("momentum", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), adam], ids=["sgd", "adam"])
def test_an_offloaded_optimizer_of_the_user_s_follows_its_scheduler(momentum):
    falling = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    arguments = {"width": 2, "microbatches": 2, "optimizer": momentum, "lr_scheduler": falling}
    whole, offloaded = (trained(**arguments, offload_optimizer=each) for each in (False, True))
    assert offloaded.losses == whole.losses
    state = whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in offloaded.state_dict().items())


def one_step_late(case, steps, dtype=torch.float64, late=1):
    """The plain loop in which an update is made `late` steps after its gradients were computed."""
    model, feed, total = case.model, Feed(), case.plan.total_microbatches
    module = model.build(range(model.layers), dtype, "cpu", seed=3)
    parameters = dict(module.named_parameters())
    matrices, vectors = ([p for p in parameters.values() if (p.dim() > 1) == which] for which in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer, waiting, losses = AdamW(groups, betas=(0.9, 0.95)), [], []
    for step in range(steps):
        for parameter in parameters.values():
            parameter.grad = None
        losses.append(0.0)
        for microbatch in range(total):
            loss = model.loss(module(feed.inputs(step, microbatch)), feed.targets(step, microbatch)) / total
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(parameters.values(), OPTIMIZER.clip)
        waiting.append((OPTIMIZER.rate(step), {name: p.grad for name, p in parameters.items()}))
        if len(waiting) > late:
            rate, gradients = waiting.pop(0)
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
    return losses


@pytest.mark.parametrize(
    ("case", "numerics"), [(Case("one_f_one_b", 2, 2, 2, layers=2), {}), CASES[1], CASES[2]], ids=names
)
def test_a_delayed_update_trains_as_the_plain_loop_that_is_one_step_late(case, numerics):
    async def losses(trainer, transport):
        return [(await trainer.step(step)).loss for step in range(5)]

    found = on_every_rank(case, losses, torch.float64, **numerics, **DELAYED)[0]
    assert found == pytest.approx(one_step_late(case, 5), rel=1e-12)
    assert found[1:] != pytest.approx(one_step_late(case, 5, late=0)[1:], rel=1e-5)


@pytest.mark.parametrize("then", [CASES[1], (Case("gpipe", 1, 2, 1, layers=1), {})], ids=["itself", "elsewhere"])
def test_a_delayed_run_goes_on_from_a_checkpoint_to_the_bit(then, tmp_path):
    case, numerics = CASES[1]

    async def begin(trainer, transport):
        for step in range(2):
            await trainer.step(step)
        await save(trainer, 2, SaveTarget(tmp_path, keep=1))
        return [(await trainer.step(step)).loss for step in (2, 3)]

    async def go_on(trainer, transport):
        assert await load(trainer, tmp_path) == 2
        return [(await trainer.step(step)).loss for step in (2, 3)]

    at_once = on_every_rank(case, begin, torch.float64, **numerics, **DELAYED)[0]
    resumed = on_every_rank(then[0], go_on, torch.float64, **then[1], **DELAYED)[0]
    assert resumed == (at_once if then[0] == case else pytest.approx(at_once, rel=1e-12))
    newest = on_every_rank(case, go_on, torch.float64, **numerics)[0]
    assert newest[0] != pytest.approx(at_once[0], rel=1e-5), "without a delay the newest values are used at once"


@pytest.mark.parametrize(("case", "numerics"), [CASES[1], CASES[2]], ids=names)
def test_what_is_gathered_has_the_last_update_and_the_run_goes_on_as_without(case, numerics):
    """The first update of a delayed run is that of a run in place."""

    async def gathering(trainer, transport):
        losses = [(await trainer.step(0)).loss]
        state = await gather_state(trainer)
        return state, losses + [(await trainer.step(step)).loss for step in (1, 2)]

    async def training(trainer, transport):
        return [(await trainer.step(step)).loss for step in range(3)]

    state, losses = on_every_rank(case, gathering, F64, **numerics, **DELAYED)[0]
    in_place, _ = on_every_rank(case, gathering, F64, **numerics)[0]
    assert state.keys() == in_place.keys() and all(torch.equal(state[name], in_place[name]) for name in state)
    assert losses == on_every_rank(case, training, F64, **numerics, **DELAYED)[0]


class Failing(torch.optim.SGD):
    """An optimizer with an update that fails."""

    def step(self, closure=None):
        raise ArithmeticError("this update fails")


ONE_STEP = {"loss": torch.nn.functional.mse_loss, "optimizer": partial(Failing, lr=0.1), **DELAYED}


def test_an_error_of_the_last_update_fails_the_job(capfd):
    layers, batch = [lambda: torch.nn.Linear(4, 4)], (torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(pp.JobFailed, match="this update fails"):
        pp.train(layers, [batch], depth=1, microbatches=1, **ONE_STEP)
    assert "this update fails" in capfd.readouterr().err
    with pp.Trainer(layers, pp.Plan("gpipe", 1, 1, 2, 1), **ONE_STEP) as trainer:
        trainer.step(batch)
    assert "this update fails" in capfd.readouterr().err


def test_the_thread_that_updates_ends_with_its_training(monkeypatch):
    begun = []

    def started(thread):
        begun.append(thread)
        start(thread)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", started)
    trained(depth=1, microbatches=2, offload_optimizer=True)
    masters = [thread for thread in begun if thread.name.startswith("masters")]
    assert len(masters) == 1
    masters[0].join(20)  # a pool that nothing closes keeps it until it is collected
    assert not masters[0].is_alive()


def test_weights_set_before_the_first_step_are_those_that_are_updated(tmp_path):
    """As a run does that begins with weights of a file."""

    async def begun(trainer, transport):
        with torch.no_grad():
            for parameter in trainer.local.parameters.values():
                parameter.mul_(0.5)
        await save(trainer, 0, SaveTarget(tmp_path / str(len(ends)), keep=1))
        return await losses_and_digest(trainer, transport)

    ends = []
    for offload in (False, True):
        ends.append(on_every_rank(CASES[0][0], begun, offload_optimizer=offload))
    assert ends[0] == ends[1]


def test_an_optimizer_is_built_from_the_values_of_the_parameters():
    """One that pulls to the values it was built with needs them."""
    seen = []

    class Looking(OptimizerConfig):
        def build(self, parameters):
            seen.append({name: parameter.detach().clone() for name, parameter in parameters.items()})
            return super().build(parameters)

    async def values(trainer):
        return {name: parameter.detach().clone() for name, parameter in trainer.local.parameters.items()}

    job = Case("gpipe", 1, 1, 1, layers=1).job(optimizer_settings=Looking(lr=0.1, steps=5), offload_optimizer=True)
    (expected,), (found,) = on_ranks(job, values), seen
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_a_delayed_update_runs_while_the_next_step_computes():
    computing, waited = threading.Event(), []

    class Slow(OptimizerConfig):
        def build(self, parameters):
            optimizer = super().build(parameters)
            update = optimizer.step

            def step():
                waited.append(computing.wait(20))
                update()

            optimizer.step = step
            return optimizer

    class Signalling(Feed):
        def inputs(self, step, microbatch):
            if step:
                computing.set()
            return super().inputs(step, microbatch)

    async def two_steps(trainer):
        for step in range(2):
            await trainer.step(step)
        await trainer.rank_optimizer.finish_update()

    job = Case("gpipe", 1, 1, 1, layers=1).job(optimizer_settings=Slow(lr=0.1, steps=5), **DELAYED)
    on_ranks(replace(job, feed=Signalling()), two_steps)
    assert waited == [True, True]


@pytest.mark.parametrize(
    ("case", "numerics", "message"),
    [
        (
            Case("pipedream_2bw", 2, 2, 4),
            {"offload_optimizer": True},
            "pipedream_2bw keeps .* need a schedule",
        ),
        (CASES[0][0], {"delayed_update": True}, r"add `offload_optimizer=`"),
        (CASES[0][0], {**DELAYED, "autocast": torch.float16}, "a delayed update has no step to skip"),
    ],
    ids=["no flush", "no offload", "float16"],
)
def test_what_masters_do_not_go_with_is_refused(case, numerics, message):
    with pytest.raises(UsageError, match=message):
        job = case.job(optimizer_settings=replace(OPTIMIZER, clip=0.0), **numerics)
        on_ranks(job, lambda trainer: trainer.step(0))


def test_a_frozen_parameter_has_no_master(tmp_path):
    layers = [lambda: torch.nn.Linear(4, 4).requires_grad_(False), lambda: torch.nn.Linear(4, 4)]
    settings = {"loss": torch.nn.functional.mse_loss, "optimizer": adam, "dtype": torch.bfloat16, **DELAYED}
    batch = torch.ones(2, 4), torch.ones(2, 4)

    def run(steps, **more):
        return pp.train(layers, [batch] * steps, depth=1, microbatches=1, masters=torch.float32, **settings, **more)

    run(2, checkpoint=tmp_path)
    (shard,) = open_checkpoint(tmp_path).shards
    frozen, trained = shard["tensors"]["0.weight"], shard["tensors"]["1.weight"]
    assert frozen.keys() == {"value"} and trained.keys() > {"value", "version-1"}
    assert [each["value"]["dtype"] for each in (frozen, trained)] == ["bfloat16", "float32"]
    assert run(4, resume=tmp_path).losses == run(4).losses[2:]


HALF = {"dtype": torch.bfloat16, "autocast": torch.float16, "masters": torch.float32}


@pytest.mark.parametrize(
    ("numerics", "message"),
    [
        ({"masters": torch.int32}, "cannot hold every value"),
        ({"masters": torch.bfloat16}, "cannot hold every value"),
        ({"dtype": torch.bfloat16, "masters": torch.float16}, "cannot hold every value"),
        (HALF, "no common dtype"),
    ],
    ids=str,
)
def test_dtypes_that_do_not_go_together_are_refused(numerics, message):
    with pytest.raises(UsageError, match=message):
        Numerics(**numerics)
    for fine in ({"dtype": torch.bfloat16, "masters": torch.float32}, {"dtype": torch.float64}, {"masters": F64}):
        Numerics(autocast=torch.bfloat16, **fine)


def bfloat16_loop(case, steps, optimizer_settings):
    """A plain loop with parameters, activations and gradients in bfloat16, and an AdamW of float32 copies."""
    model, feed, total = case.model, Feed(), case.plan.total_microbatches
    module = model.build(range(model.layers), torch.bfloat16, "cpu", seed=3)
    parameters = dict(module.named_parameters())
    masters = {name: torch.nn.Parameter(p.detach().float()) for name, p in parameters.items()}
    optimizer, losses = optimizer_settings.build(masters), []
    for step in range(steps):
        module.zero_grad()
        losses.append(0.0)
        for microbatch in range(total):
            loss = model.loss(module(feed.inputs(step, microbatch)), feed.targets(step, microbatch)) / total
            loss.backward()
            losses[-1] += loss.item()
        for name, parameter in parameters.items():
            masters[name].grad = parameter.grad.float()
        for group in optimizer.param_groups:
            group["lr"] = optimizer_settings.rate(step)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(masters[name])
    return losses, masters


@pytest.mark.parametrize("offload", [False, True], ids=["on the device", "on the host"])
def test_bfloat16_parameters_with_float32_masters_train_as_the_plain_loop(offload, tmp_path):
    case, unclipped = Case("one_f_one_b", 2, 1, 2, layers=2, tied=False), replace(OPTIMIZER, clip=0.0)
    expected, masters = bfloat16_loop(case, 5, unclipped)
    numerics = {"masters": torch.float32, "offload_optimizer": offload}

    async def losses(trainer):
        found = [(await trainer.step(step)).loss for step in range(5)]
        await save(trainer, 5, SaveTarget(tmp_path, keep=1))
        saved = {name: trainer.state_of(name)["value"] for name in trainer.local.parameters}
        return found, all(torch.equal(value, masters[name]) for name, value in saved.items())

    for found, equal in on_ranks(case.job(torch.bfloat16, unclipped, **numerics), losses):
        assert found == pytest.approx(expected, rel=1e-6) and equal

    async def resumed(trainer):
        assert await load(trainer, tmp_path) == 5
        return all(torch.equal(p, masters[name].bfloat16()) for name, p in trainer.local.parameters.items())

    assert all(on_ranks(case.job(torch.bfloat16, unclipped, **numerics), resumed))
