"""A user's own modules train as in a plain loop: frozen, without parameters, random, or with running statistics."""

import json

import numpy as np
import pytest
import torch

from pipelined.errors import AgreedError
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.training.evaluate import evaluate
from tests.numerics.own_model import Feed, Rows, on_ranks, plain, plan, steps

STEPS = 3
FROZEN = Rows("frozen", "frozen", "linear", "frozen", "tanh", "linear")
"""At depth 3 the first stage has nothing to train; at depth 6 one stage has no parameters, and two frozen ones."""


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("schedule, depth, recompute", [("gpipe", 6, False), ("zb_h1", 3, True), ("chimera", 6, True)])
def test_frozen_layers_stay_and_a_stage_may_have_nothing_to_train(schedule, depth, recompute):
    """Weight decay moved them; a first stage without trained parameters ended the run with an error of autograd."""
    arranged = plan(schedule, depth, microbatches=6)
    losses, tensors = plain(FROZEN, 6, STEPS)
    begun = dict(FROZEN.build(range(6), torch.float64, "cpu", seed=5).named_parameters())
    for told, held in on_ranks(FROZEN, arranged, steps(STEPS), recompute):
        assert_close(told, losses)
        for name, value in held.items():
            assert_close(value, tensors[name].detach())
            assert begun[name].requires_grad or torch.equal(value, begun[name]), name


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw", "async_1f1b"])
def test_a_stage_with_nothing_to_train_has_no_delay_without_a_flush(schedule, tmp_path):
    arranged = plan(schedule, 6, microbatches=6)

    async def work(trainer):
        report = await trainer.train(range(STEPS), lambda: False)
        await save(trainer, STEPS, SaveTarget(tmp_path, keep=1))
        await load(trainer, tmp_path)
        return report.staleness, trainer.local.parameters

    begun = dict(FROZEN.build(range(6), torch.float64, "cpu", seed=5).named_parameters())
    for staleness, held in on_ranks(FROZEN, arranged, work):
        assert staleness[0] == staleness[1] == staleness[4] == 0.0
        for name, value in held.items():
            assert torch.equal(value, begun[name]) != value.requires_grad


def test_a_model_resumes_though_its_first_rank_trains_nothing(tmp_path):
    """The count of updates was read off rank 0's optimizer, which has made none."""

    async def at_once(trainer):
        await trainer.step(0)
        await trainer.step(1)
        await save(trainer, 2, SaveTarget(tmp_path, keep=1))
        return (await trainer.step(2)).loss, dict(trainer.local.tensors)

    async def resumed(trainer):
        assert await load(trainer, tmp_path) == 2
        return (await trainer.step(2)).loss, dict(trainer.local.tensors)

    one, other = (on_ranks(FROZEN, plan("gpipe", 3), work) for work in (at_once, resumed))
    for (loss, held), (again, other_held) in zip(one, other, strict=True):
        assert loss == again
        assert all(torch.equal(value, other_held[name]) for name, value in held.items())


def test_replicas_draw_masks_of_their_own_and_every_arrangement_of_a_cut_draws_the_same():
    """Every rank's generator began alike, so groups side by side dropped the same places."""
    model = Rows("linear", "dropout")
    (wide, _), *_ = on_ranks(model, plan("gpipe", 2, width=2, microbatches=2), steps(STEPS))
    (narrow, _), _ = on_ranks(model, plan("gpipe", 2), steps(STEPS))
    assert_close(wide, narrow)


class Counted(Rows):
    """The squared error where the target is positive, and how many are."""

    def loss(self, output, targets):
        counted = targets > 0
        return (output - targets)[counted].square().sum(), counted.sum()


def test_an_evaluation_divides_all_sums_by_all_counts():
    model, windows = Counted("linear", "tanh"), [(Feed().inputs(9, m), Feed().targets(9, m)) for m in range(3)]
    module = model.build(range(2), torch.float64, "cpu", seed=5)
    with torch.no_grad():
        totals, counts = zip(*(model.loss(module(x), y) for x, y in windows), strict=True)
    assert len({int(count) for count in counts}) > 1

    async def work(trainer):
        return await evaluate(trainer.context, trainer.model, windows, trainer.world, tag=0)

    for seen in on_ranks(model, plan("chimera", 2, width=2), work):
        assert_close(seen, float(sum(totals) / sum(counts)))


@pytest.mark.parametrize("recompute", [False, True])
def test_running_statistics_are_those_of_one_process_and_are_saved_and_loaded(tmp_path, recompute):
    """They were in no checkpoint, a forward that was run again counted twice, and so did every evaluation."""
    model, arranged = Rows("norm", "tanh", "norm", "tanh"), plan("one_f_one_b", 2)
    losses, tensors = plain(model, 4, STEPS)

    async def work(trainer):
        told = await steps(STEPS)(trainer)
        windows = [(Feed().inputs(9, m), Feed().targets(9, m)) for m in range(2)]
        seen = await evaluate(trainer.context, trainer.model, windows, trainer.world, tag=STEPS)
        await save(trainer, STEPS, SaveTarget(tmp_path, keep=1))
        return told, seen, dict(trainer.local.buffers)

    async def resumed(trainer):
        await load(trainer, tmp_path)
        return dict(trainer.local.buffers)

    module = model.build(range(4), torch.float64, "cpu", None).eval()
    module.load_state_dict(tensors)
    with torch.no_grad():
        expected = [float(model.loss(module(Feed().inputs(9, m)), Feed().targets(9, m))) for m in range(2)]
    trained, loaded = on_ranks(model, arranged, work, recompute), on_ranks(model, arranged, resumed)
    for ((told, held), seen, kept), again in zip(trained, loaded, strict=True):
        assert_close(told, losses)
        assert_close(seen, sum(expected) / 2)
        for name, value in held.items():
            assert_close(value, tensors[name].detach())
        assert len(kept) == 3
        assert all(torch.equal(value, again[name]) for name, value in kept.items())


class Pooled(Rows):
    """Keeps one running mean for all channels: another shape of a tensor under the same identity."""

    def build(self, layers, dtype, device, seed):
        part = super().build(layers, dtype, device, seed)
        for layer in part.row.values():
            layer[1].running_mean = torch.zeros(1, dtype=dtype, device=device)
        return part


async def saved_in(place, trainer):
    await save(trainer, 1, SaveTarget(place, keep=1))


async def refused(trainer, place, fact):
    before = {name: tensor.clone() for name, tensor in trainer.local.tensors.items()}
    with pytest.raises(AgreedError, match=fact):
        await load(trainer, place)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.local.tensors.items())


@pytest.mark.parametrize(
    "saved, loaded, shapes", [(Pooled, Rows, r"\(1,\), model: \(6,\)"), (Rows, Pooled, r"\(6,\), model")]
)
def test_a_tensor_of_another_shape_in_a_checkpoint_is_refused_by_name(tmp_path, saved, loaded, shapes):
    """One value was spread over all channels in silence; the other way round it was a bare error of torch."""
    on_ranks(saved("norm"), plan("gpipe", 1), lambda trainer: saved_in(tmp_path, trainer))
    fact = rf"step-0+1 has row\.0\.1\.running_mean \(value\) in another shape \(saved: {shapes}.*resume with the model"
    on_ranks(loaded("norm"), plan("gpipe", 1), lambda trainer: refused(trainer, tmp_path, fact))


@pytest.mark.parametrize("updates", ["3", None, 1.5, True, -1, 10**400], ids=str)
def test_an_impossible_count_of_updates_is_refused(tmp_path, updates):
    on_ranks(Rows("linear"), plan("gpipe", 1), lambda trainer: saved_in(tmp_path, trainer))
    (manifest,) = tmp_path.glob("*/manifest.json")
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "scalars": {**told["scalars"], "updates": updates}}))
    fact = rf"is damaged \(updates: {updates!r}, should be a number from 0 to \d+\); resume from another"
    on_ranks(Rows("linear"), plan("gpipe", 1), lambda trainer: refused(trainer, tmp_path, fact))


def test_a_parameter_without_a_value_in_a_checkpoint_is_refused_by_name(tmp_path):
    record = checkpoint.write_shard(
        tmp_path, 1, 0, 1, {f"row.0.{n}": {"mean": torch.ones(1)} for n in ("weight", "bias")}
    )
    checkpoint.commit(tmp_path, checkpoint.Meta(1, Rows("linear").identity(), {}), [record], 1)
    fact = r"is damaged \(it has no value of row.0.weight, but: mean\); resume from another"
    on_ranks(Rows("linear"), plan("gpipe", 1), lambda trainer: refused(trainer, tmp_path, fact))


class Unseeded(Rows):
    """Draws initial values from torch's generator, as torch's modules do."""

    def build(self, layers, dtype, device, seed):
        return super().build(layers, dtype, device, None)


@pytest.mark.parametrize("schedule, width, trains", [("chimera", 1, False), ("gpipe", 2, False), ("gpipe", 1, True)])
def test_replicas_that_begin_with_different_values_are_refused(schedule, width, trains):
    """They trained on, and each replica's updates were made of the other's gradients."""
    arranged = plan(schedule, 2, width)
    if trains:
        on_ranks(Unseeded("linear", "linear"), arranged, steps(1))
        return
    with pytest.raises(AgreedError, match=r"ranks 0 and \d hold different values of row\.0\.weight before the first"):
        on_ranks(Unseeded("linear", "linear"), arranged, steps(1))
