"""Stages of a swarm against the whole model in float64, replicas bit for bit, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig, cut_for
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.state.stages.store import DiskStore, load, saved_stages
from pipelined.state.stages.versions import SavedStage, common_step
from pipelined.state.tensor_specs import specs_of
from pipelined.swarm.stages import torch_stage
from pipelined.swarm.stages.swarm_stage import Microbatch, NotFinite
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training
from pipelined.training.optimizer import OptimizerConfig, clip_factor
from transports import Block

ROWS, SEQUENCE, SYMBOLS = 2, 6, 13
MODEL = GPT2(ModelConfig(layers=4, d_model=8, heads=2, vocab=SYMBOLS, positions=SEQUENCE, dropout=0.2, tied=False))
CUT = (range(0, 2), range(2, 4), range(4, 6))
OPTIMIZER = OptimizerConfig(lr=1e-2, steps=9, warmup=2)
EXACT = Training(MODEL, CUT, OPTIMIZER, ROWS, SEQUENCE, seed=3, dtype=torch.float64)


def data(microbatch: Microbatch) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng((microbatch.step, microbatch.index)).integers(0, SYMBOLS, (ROWS, SEQUENCE + 1))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def run(stages: list[TorchStage], microbatch: Microbatch) -> float:
    """One microbatch forth and back, as a trainer does it."""
    tokens, labels = data(microbatch)
    inputs = [[tokens]]
    for stage in stages[:-1]:
        inputs.append(stage.forward(microbatch, inputs[-1]))
    passed = stages[-1].backward(microbatch, inputs[-1], [labels], True)
    loss = passed.loss
    for stage, entered in zip(stages[-2::-1], inputs[-2::-1], strict=True):
        passed = stage.backward(microbatch, entered, passed.gradients, True)
    assert not passed.gradients
    return loss


def build(training: Training = EXACT) -> list[TorchStage]:
    return [TorchStage(training, index) for index in range(len(training.cut))]


def rotary(squeeze: str) -> Training:
    config = RotaryConfig(4, 8, 2, SYMBOLS, SEQUENCE, dropout=0.2, shared=2, squeeze=squeeze, deviation=0.2)
    narrow, cut = cut_for(config, 3, SEQUENCE)
    return replace(EXACT, model=RotaryLM(narrow), cut=cut)


MODELS = {"gpt2": EXACT} | {squeeze: rotary(squeeze) for squeeze in ("none", "bottleneck", "maxout")}


@pytest.mark.parametrize("training", MODELS.values(), ids=MODELS)
def test_stages_together_give_the_gradients_and_loss_of_the_whole_model(training: Training):
    stages, microbatches = build(training), [Microbatch(4, index) for index in range(3)]
    loss = sum(run(stages, microbatch) for microbatch in microbatches)
    model = training.model
    whole = model.build(range(model.layers), torch.float64, "cpu", seed=3)
    expected = torch.zeros((), dtype=torch.float64)
    for microbatch in microbatches:
        tokens, labels = map(torch.from_numpy, data(microbatch))
        with drawing_from(KeyedRandom(3, microbatch.step, microbatch.index)):
            output = whole(tokens)
        expected = expected + ROWS * model.loss(output, labels)
    expected.backward()
    gradients = {name: p.grad for name, p in whole.named_parameters()}
    names = [name for shapes in training.shapes() for name in shapes]
    flat = torch.cat([gradients[name].flatten() for name in names]).numpy()
    sums = np.concatenate([stage.sums for stage in stages])
    assert loss == pytest.approx(expected.item(), rel=1e-13)
    np.testing.assert_allclose(sums, flat, rtol=0.0, atol=1e-12 * np.abs(flat).max())


def test_a_pass_done_again_gives_the_same_bits_and_another_microbatch_others():
    stage, (tokens, _) = build()[0], data(Microbatch(0, 0))
    first, repeated, second = (stage.forward(Microbatch(0, index), [tokens])[0] for index in (0, 0, 1))
    assert torch.equal(first, repeated)
    assert not torch.equal(first, second)


class TorchDropped(GPT2):
    """Drops by torch's own dropout, too."""

    def _part(self, layers: range) -> torch.nn.Module:
        part = super()._part(layers)
        forward = part.forward
        part.forward = lambda x: functional.dropout(forward(x), 0.4, part.training)
        return part


def test_torch_s_own_dropout_is_the_same_when_a_pass_is_done_again_and_none_in_an_evaluation():
    """Every backward runs the forward again, and did so with another mask."""
    training = replace(EXACT, model=TorchDropped(MODEL.config))
    (one, *_), (other, *_), (tokens, _) = build(training), build(training), data(Microbatch(0, 0))
    once, again, elsewhere = (stage.forward(Microbatch(0, 0), [tokens])[0] for stage in (one, one, other))
    assert torch.equal(once, again) and torch.equal(once, elsewhere)
    (seen,), (unseen,) = one.evaluate([tokens]), build()[0].evaluate([tokens])
    assert (once == 0.0).any() and torch.equal(seen, unseen)


def test_what_does_not_count_changes_no_sum_and_gives_the_same_gradient():
    stage, which = build(replace(EXACT, dtype=torch.float32))[1], Microbatch(1, 0)
    x, end = (torch.randn(ROWS, SEQUENCE, 8, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    uncounted = stage.backward(which, [x], [end], False)
    assert not stage.sums.any()
    counted = stage.backward(which, [x], [end], True)
    assert stage.sums.any()
    assert torch.equal(uncounted.gradients[0], counted.gradients[0])
    stage.clear()
    assert not stage.sums.any()


def test_sums_of_another_peer_can_be_added():
    stages, other_stages = build(), build()
    run(stages, Microbatch(0, 0))
    run(other_stages, Microbatch(0, 1))
    expected = stages[1].sums + other_stages[1].sums
    stages[1].sums += other_stages[1].sums
    assert np.array_equal(stages[1].sums, expected)


def test_what_may_not_be_written_to_is_taken_as_well():
    stage, which = build()[1], Microbatch(0, 0)
    x = np.random.default_rng(0).standard_normal((ROWS, SEQUENCE, 8))
    fixed = Block.of(x.tobytes())
    (expected,), (got,) = (stage.forward(which, [i]) for i in (x, Block("float64", x.shape, fixed.data)))
    assert fixed.data.readonly
    assert torch.equal(got, expected)


def step_of(replicas: list[list[TorchStage]], step: int) -> None:
    """All replicas of every stage take a step, each with a microbatch of its own."""
    for number, stages in enumerate(replicas):
        run(stages, Microbatch(step, number))
    totals = [sum(stage.sums for stage in peers) for peers in zip(*replicas, strict=True)]
    for stages in replicas:
        for stage, total in zip(stages, totals, strict=True):
            stage.apply(step, total.copy(), 1.0 / (len(replicas) * ROWS))
            stage.clear()


def same(one: TorchStage, other: TorchStage) -> bool:
    mine, theirs = one.state(), other.state()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("update", ["adamw", "lamb"])
def test_replicas_stay_equal_to_the_bit_and_learn(update: str):
    pair = [build(replace(EXACT, update=update, dtype=torch.float32)) for _ in range(2)]
    fresh = build(replace(EXACT, update=update, dtype=torch.float32))
    for step in range(3):
        step_of(pair, step)
    assert all(same(*replicas) for replicas in zip(*pair, strict=True))
    assert not any(same(*stages) for stages in zip(pair[0], fresh, strict=True))


@pytest.mark.parametrize("update", ["adamw", "lamb"])
def test_a_joiner_that_loads_a_state_goes_on_bit_for_bit(update: str):
    training = replace(EXACT, update=update, dtype=torch.float32)
    pair = [build(training), build(training)]
    step_of(pair, 0)
    step_of(pair, 1)
    joined = build(training)
    for old, new in zip(pair[1], joined, strict=True):
        new.load({name: Block.of(tensor.numpy().copy()) for name, tensor in old.state().items()})
        assert same(old, new)
    pair[1] = joined
    step_of(pair, 2)
    assert all(same(*replicas) for replicas in zip(*pair, strict=True))


def test_what_three_stages_saved_two_go_on_with(tmp_path: Path):
    three, two = build(), build(replace(EXACT, cut=(range(0, 3), range(3, 6))))
    step_of([three], 0)
    for stage in three:
        DiskStore(tmp_path, MODEL.identity()).save(SavedStage(1, stage.index, 3, "a"), stage.state())
    for stage in two:
        stage.load(load(tmp_path, common_step(saved_stages(tmp_path)), specs_of(stage.state()), MODEL.identity()))
    saved = {name: tensor for stage in three for name, tensor in stage.state().items()}
    loaded = {name: tensor for stage in two for name, tensor in stage.state().items()}
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert int(loaded["updates/count"]) == 1


def test_one_step_is_that_of_torchs_optimizer_with_the_same_clip():
    stages, whole = build(), MODEL.build(range(6), torch.float64, "cpu", seed=3)
    run(stages, Microbatch(0, 0))
    norm = sum(stage.square(stage.sums) for stage in stages) ** 0.5 / ROWS
    for stage in stages:
        stage.apply(0, stage.sums.copy(), clip_factor(OPTIMIZER.clip, norm) / ROWS)
    tokens, labels = map(torch.from_numpy, data(Microbatch(0, 0)))
    with drawing_from(KeyedRandom(3, 0, 0)):
        MODEL.loss(whole(tokens), labels).backward()
    parameters = dict(whole.named_parameters())
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(parameters.values(), OPTIMIZER.clip)), rel=1e-12)
    optimizer = OPTIMIZER.build(parameters)
    for group in optimizer.param_groups:
        group["lr"] = OPTIMIZER.rate(0)
    optimizer.step()
    for stage in stages:
        for name in EXACT.shapes()[stage.index]:
            torch.testing.assert_close(stage.state()[f"{name}/value"], parameters[name].detach(), rtol=1e-9, atol=1e-12)


def test_a_state_is_views_and_names_every_tensor():
    stage = build()[1]
    state = stage.state()
    assert (
        state["transformer.h.1.ln_1.weight/value"].data_ptr()
        == stage.state()["transformer.h.1.ln_1.weight/value"].data_ptr()
    )
    assert len(state) == 3 * len(EXACT.shapes()[1]) + 1
    assert specs_of(state)["updates/count"] == ("int64", ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"updates/count": None}, "updates/count: missing given"),
        ({"strange/value": np.zeros(3)}, r"strange/value: \('float64', \(3,\)\) given, none here"),
        ({"updates/count": np.zeros((), np.int32)}, r"\('int32', \(\)\) given, \('int64', \(\)\) here"),
    ],
)
def test_a_state_of_another_stage_is_refused_and_changes_nothing(change: dict, message: str):
    stage, other = build()[1], build(replace(EXACT, seed=4))[1]
    state = {name: Block.of(value) for name, value in {**other.state(), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        stage.load(state)
    assert same(stage, build()[1])


def test_strange_inputs_and_gradients_are_refused_before_anything_counts():
    first, middle, last = build()
    which, (tokens, labels) = Microbatch(0, 0), data(Microbatch(0, 0))
    x = np.zeros((ROWS, SEQUENCE, 8))
    with pytest.raises(ValueError, match=r"unexpected inputs at stage 0 \(ids: 0 to 13, symbols: 13\)"):
        first.forward(which, [np.where(tokens == tokens.max(), 13, 0)])
    with pytest.raises(ValueError, match=r"unexpected inputs at stage 0 \(got: float64"):
        first.forward(which, [x])
    with pytest.raises(ValueError, match=r"unexpected gradients at stage 1 \(got: nothing"):
        middle.backward(which, [x], [], True)
    with pytest.raises(ValueError, match=r"unexpected labels at stage 2 \(ids: -1 to"):
        last.backward(which, [x], [np.where(labels == labels.min(), -1, labels)], True)
    assert not any(stage.sums.any() for stage in (first, middle, last))


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_what_is_not_finite_is_named_and_never_summed(strange: float):
    middle, flow = TorchStage(EXACT, 1), np.ones((ROWS, SEQUENCE, 8))
    spoilt = np.where(np.arange(8) == 3, strange, flow)
    with pytest.raises(NotFinite, match=r"outputs at stage 1 that are not finite \(step: 0, microbatch: 2\)"):
        middle.forward(Microbatch(0, 2), [spoilt])
    for inputs, given in ((spoilt, flow), (flow, spoilt)):
        with pytest.raises(NotFinite, match="gradients at stage 1"):
            middle.backward(Microbatch(0, 2), [inputs], [given], True)
    assert not middle.sums.any()


def test_a_total_of_another_stage_is_refused():
    stage = build()[1]
    with pytest.raises(ValueError, match=r"a total of another stage \(got: float64 \(3,\)"):
        stage.apply(0, np.zeros(3), 1.0)
    assert same(stage, build()[1])


def test_all_stages_have_one_digest_and_every_difference_another():
    digests = {stage.model for stage in build()}
    assert len(digests) == 1
    variants = [
        replace(EXACT, seed=4), replace(EXACT, rows=4), replace(EXACT, update="lamb"), replace(EXACT, text="other"),
        replace(EXACT, optimizer_settings=replace(OPTIMIZER, clip=2.0)), replace(EXACT, dtype=torch.float32),
        replace(EXACT, cut=(range(0, 3), range(3, 6))), replace(EXACT, autocast=True),
    ]  # fmt: skip
    digests |= {training.digest([torch_stage]) for training in variants}
    assert len(digests) == 1 + len(variants)
    assert EXACT.digest([torch_stage]) != EXACT.digest([])


def test_stages_that_would_share_a_parameter_are_refused():
    tied = GPT2(replace(MODEL.config, tied=True))
    with pytest.raises(UsageError, match=r"stages 0 and 2 would share transformer\.wte\.weight"):
        replace(EXACT, model=tied)
    replace(EXACT, model=tied, cut=(range(0, 6),))


@pytest.mark.parametrize("cut", [(range(0, 3),), (range(0, 3), range(2, 6)), (range(0, 6), range(6, 6))])
def test_an_invalid_cut_is_refused(cut: tuple[range, ...]):
    with pytest.raises(UsageError, match="layers: 6, cut:"):
        replace(EXACT, cut=cut)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("update", ["adamw", "lamb"])
def test_a_gpu_makes_the_update_of_a_cpu_to_the_bit(update: str):
    training = replace(EXACT, update=update, dtype=torch.float32)
    host, gpu = TorchStage(training, 1), TorchStage(training, 1, "cuda:0")
    for step in range(4):
        total = np.random.default_rng(step).standard_normal(host.sums.size).astype(np.float32)
        for stage in (host, gpu):
            stage.apply(step, total, 0.37)
        assert same(host, gpu)


@pytest.mark.parametrize("training", MODELS.values(), ids=MODELS)
def test_an_evaluation_is_of_the_whole_model_without_noise_and_leaves_nothing_behind(training: Training):
    stages, (flow, labels) = build(training), data(Microbatch(0, 7))
    before = [{name: value.clone() for name, value in stage.state().items()} for stage in stages]
    x = [flow]
    for stage in stages[:-1]:
        x = stage.evaluate(x)
    (losses,) = stages[-1].evaluate(x, [labels])
    model = training.model
    whole = model.build(range(model.layers), torch.float64, "cpu", seed=3)
    logits = whole(torch.from_numpy(flow))
    expected = [
        model.loss(logits[row : row + 1], torch.from_numpy(labels[row : row + 1])).item() for row in range(ROWS)
    ]
    assert losses.tolist() == pytest.approx(expected, rel=1e-13) and losses.dtype == torch.float64
    assert stages[-1].evaluate(x, [labels[:1]])[0].tolist() == losses[:1].tolist()
    for stage, state in zip(stages, before, strict=True):
        assert not stage.sums.any() and all(torch.equal(state[name], value) for name, value in stage.state().items())


def test_an_evaluation_refuses_labels_in_the_middle_strange_ones_and_what_is_not_finite():
    first, _, last = build()
    flow, labels = data(Microbatch(0, 0))
    stream = np.zeros((ROWS, SEQUENCE, 8))
    with pytest.raises(ValueError, match="labels are for the last stage"):
        first.evaluate([flow], [labels])
    with pytest.raises(ValueError, match="labels are for the last stage"):
        last.evaluate([stream])
    for strange in (labels[:0], labels[:, :2], np.full_like(labels, SYMBOLS)):
        with pytest.raises(ValueError, match="unexpected labels"):
            last.evaluate([stream], [strange])
    with pytest.raises(NotFinite):
        last.evaluate([np.full_like(stream, np.nan)], [labels])
