"""A GPT-2 over ranks beside the plain one: steps of AdamW, gradients, and the bytes of a block."""

import pytest
import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import OPERATORS, factors_of
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.sharding.operators.stage_record import MoveStep, piece, record
from pipelined.sharding.operators.tape import sum_gradients, sum_path
from pipelined.sharding.operators.verbs import Value
from tests.unit.pipelined.sharding.operators.ranks import normal, on_ranks, together

B, T, STEPS = 6, 5, 5
SMALL = ModelConfig(layers=2, d_model=24, heads=8, vocab=29, positions=7, dropout=0.2)


def alike(factors):
    return dict.fromkeys(OPERATORS, factors)


CASES = {
    "2 columns": (SMALL, alike((1, 2, 1))),
    "2 rows, untied": (ModelConfig(2, 24, 8, 29, 7, 0.2, False), alike((2, 1, 1))),
    "3, contraction, uneven": (ModelConfig(1, 40, 8, 29, 7, 0.0), alike((1, 1, 3))),
    "3 columns, uneven": (ModelConfig(1, 40, 8, 29, 7, 0.3), alike((1, 3, 1))),
    "4, each its own": (
        SMALL,
        dict(zip(OPERATORS, [(2, 2, 1), (1, 2, 2), (4, 1, 1), (2, 1, 2), (1, 4, 1)], strict=True)),
    ),
    "8, three ways": (SMALL, alike((2, 2, 2))),
    "8, uneven meshes": (
        ModelConfig(1, 40, 8, 29, 7, 0.1),
        dict(zip(OPERATORS, [(2, 4, 1), (2, 2, 2), (1, 8, 1), (2, 1, 4), (4, 1, 2)], strict=True)),
    ),
}


def batch(step, vocab):
    ids = torch.randint(vocab, (B, T + 1), generator=torch.Generator().manual_seed(step))
    return ids[:, :-1], ids[:, 1:]


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def plain(config):
    """The losses, the first gradients and the last parameters of a plain loop."""
    model = GPT2(config)
    part = model.build(range(model.layers), torch.float64, "cpu", 1)
    step_of, losses, first = optimizer(part.parameters()), [], {}
    for step in range(STEPS):
        ids, targets = batch(step, config.vocab)
        with drawing_from(KeyedRandom(3, step, 0)):
            loss = model.loss(part(ids), targets)
        part.zero_grad()
        loss.backward()
        first = first or {name: each.grad.clone() for name, each in part.named_parameters()}
        step_of.step()
        losses.append(loss.item())
    return losses, first, {name: each.detach() for name, each in part.named_parameters()}


async def train(tape, model, wholes):
    """The same on one rank of a sharded model; each loss is this rank's summand."""
    pieces = {name: model.local(name, whole, tape.rank).requires_grad_() for name, whole in wholes.items()}
    layouts, step_of, losses, first = model.parameters(), optimizer(pieces.values()), [], {}
    for step in range(STEPS):
        shards = model.input_shards((B, T))
        ids, targets = (Value(shards.local(each, tape.rank), shards, False) for each in batch(step, model.config.vocab))
        output = await tape.run(model.run_layers(tape, range(model.layers), ids, pieces, KeyedRandom(3, step, 0)))
        loss = await tape.run(model.score(tape, output, targets))
        step_of.zero_grad()
        await tape.run(tape.backward(loss, torch.ones((), dtype=torch.float64)))
        await sum_gradients(tape.network, [(pieces[name], layouts[name]) for name in pieces])
        first = first or {name: piece.grad.clone() for name, piece in pieces.items()}
        step_of.step()
        losses.append(loss)
    return losses, first, {name: piece.detach() for name, piece in pieces.items()}


def worst(found, expected):
    """The largest difference, as a share of the largest element."""
    return float((found.reshape(expected.shape) - expected).abs().max() / expected.abs().max())


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("case", CASES)
def test_five_steps_over_ranks_are_those_of_one_process(case):
    config, factors = CASES[case]
    model, (losses, gradients, parameters) = ShardedGPT2(config, factors), plain(config)
    whole = GPT2(config)
    initial = dict(whole.build(range(whole.layers), torch.float64, "cpu", 1).named_parameters())
    wholes = {name: each.detach() for name, each in initial.items()}
    ranks, _ = on_ranks(model.mesh.size, lambda tape: train(tape, model, wholes))
    for step, expected in enumerate(losses):
        pieces = [found[step] for found, _, _ in ranks]
        assert together(pieces[0].shards, [piece.array for piece in pieces]).item() == pytest.approx(
            expected, rel=1e-12
        )
    for name, shards in model.parameters().items():
        first = together(shards, [found[name] for _, found, _ in ranks])
        last = together(shards, [found[name] for _, _, found in ranks])
        assert worst(first, gradients[name]) < 1e-12, name
        assert worst(last, parameters[name]) < (1e-9 if "c_attn.bias" in name else 1e-10), name


PAPER = dict(zip(OPERATORS, [(4, 8, 2), (4, 4, 4), (4, 8, 2), (4, 2, 8), (4, 16, 1)], strict=True))


def plain_block(config, x, wholes, gradient):
    """A block's result, and the gradients of its input and parameters, in one process."""
    part = GPT2(config).build(range(1, 2), torch.float64, "cpu", 1)
    own = {name: wholes[name].reshape(each.shape).requires_grad_() for name, each in part.named_parameters()}
    x = x.clone().requires_grad_()
    y = torch.func.functional_call(part, own, (x,))
    y.backward(gradient)
    return y.detach(), x.grad, {name: each.grad for name, each in own.items()}


def test_a_block_on_64_ranks_computes_as_one_process_and_sends_the_known_bytes():
    """B 8, T 8, C 128, H 16 in float64: the strategy of which Figure 3 has attention, with the norms' statistics."""
    config = ModelConfig(1, 128, 16, 64, 8, 0.0)
    model = ShardedGPT2(config, PAPER)
    shards, layouts = model.stream((8, 8)), model.parameters()
    names = [name for name in layouts if ".h.0." in name]
    wholes = {name: normal(*layouts[name].lengths, seed=at) / 10 for at, name in enumerate(names)}
    x, gradient, sent = normal(8, 8, 128), normal(8, 8, 128, seed=99), {}
    multiplied = [name for name in names if "c_" in name and "weight" in name]

    async def work(tape):
        def counted(phase):
            sent.setdefault(phase, []).append(tape.network.transport.traffic.bytes_sent)

        pieces = {name: layouts[name].local(each, tape.rank).requires_grad_() for name, each in wholes.items()}
        given = Value(shards.local(x, tape.rank), shards)
        y = await tape.run(model.block(tape, 0, given, pieces))
        counted("forward")
        await tape.run(tape.backward(y, y.shards.local(gradient, tape.rank)))
        counted("backward")
        for some in (multiplied, [name for name in names if name not in multiplied]):
            await sum_gradients(tape.network, [(pieces[name], layouts[name]) for name in some])
            counted("update" if some is multiplied else "all")
        return y.array, given.gradient, {name: piece.grad for name, piece in pieces.items()}

    ranks, _ = on_ranks(64, work)
    assert max(sent["forward"]) == min(sent["forward"]) == 39_872
    assert set(sent["backward"]) == {2 * 39_872}
    assert set(sent["update"]) == {2 * 39_872 + 147_456}
    y, back, gradients = plain_block(config, x, wholes, gradient)
    assert worst(together(shards, [found for found, *_ in ranks]), y) < 1e-12
    assert worst(together(shards, [found for _, found, _ in ranks]), back) < 1e-12
    for name in names:
        assert worst(together(layouts[name], [found[name] for *_, found in ranks]), gradients[name]) < 1e-12, name


def test_the_steps_of_a_block_send_what_the_document_says():
    """docs/sharding.md: norm; c_attn; attn.c_proj; norm; c_fc; mlp.c_proj."""
    model, rank = ShardedGPT2(ModelConfig(1, 128, 16, 64, 8, 0.0), PAPER), 37
    pieces = {name: piece(rank, each, torch.float64) for name, each in model.parameters().items()}
    shards = model.stream((8, 8))
    x = piece(rank, shards, torch.float64, trained=False)
    found = record(rank, lambda tape: model.block(tape, 0, Value(x, shards), pieces))
    sent = [step.path.elements(rank) for step in found.forward.steps if isinstance(step, MoveStep)]
    assert sent == [30, 30, 896, 384, 384, 384, 30, 30, 896, 512, 512, 896]
    assert sum(sent[2:6]) * 2**20 == 2**31, "attention's, with 2^20 times as many activations: Figure 3 of AutoDDL"
    assert found.forward.nbytes == found.backward.nbytes == 39_872


def test_biases_and_norms_add_their_own_sums():
    """3/2 of what a rank holds, as of the weights: 9 C of biases and 4 C of norms, over 16 ranks."""
    model = ShardedGPT2(ModelConfig(1, 128, 16, 64, 8, 0.0), PAPER)
    layouts = {name: each for name, each in model.parameters().items() if ".h.0." in name}
    small = [each for name, each in layouts.items() if "ln_" in name or name.endswith("bias")]
    assert sum(sum_path(each).elements(0) for each in small) == 3 / 2 * 13 * 128 / 16


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"c_attn": (1, 2, 1)}, r"factors of other operators \(given: c_attn\)"),
        (alike((1, 1, 2)) | {"c_fc": (1, 1, 1)}, "different products"),
        (alike((1, 9, 1)), r"more column shards than heads \(c_attn, shards: 9, heads: 8\)"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors, message):
    with pytest.raises(UsageError, match=message):
        ShardedGPT2(SMALL, factors)


def test_stored_weights_are_gathered_each_way_and_their_gradients_scattered():
    """3 (p0-1)/p0 · kn elements a weight and microbatch (the tied table is used twice), and no more is kept."""
    config, factors, p = ModelConfig(1, 16, 8, 16, 6, 0.0), alike((4, 1, 1)), 4
    kept, sent = [], []
    for state in ("none", "zero3"):
        model = ShardedGPT2(config, factors, state)
        pieces = {name: piece(1, each, torch.float64) for name, each in model.parameters().items()}
        ids = Value(piece(1, model.input_shards((8, 6)), torch.int64, trained=False), model.input_shards((8, 6)), False)

        async def stage(tape, model=model, pieces=pieces, ids=ids):
            return await model.score(tape, await model.run_layers(tape, range(model.layers), ids, pieces), ids)

        found = record(1, stage)
        kept.append(found.kept)
        sent.append(found.forward.nbytes + found.backward.nbytes)
        held = sum(each.numel() for each in pieces.values())
    multiplied = 12 * 16 * 16 + 2 * 16 * 16
    assert sent[1] - sent[0] == 8 * 3 * (p - 1) / p * multiplied
    assert kept[0] == kept[1]
    assert held == (12 * 16 + 16) * 16 / p + 6 * 16 + (9 + 6) * 16


@pytest.mark.parametrize("microbatches", [1, 3])
def test_weights_that_are_gathered_once_a_step_send_n_plus_1_times_a_share(microbatches):
    """ZeRO-2: (N + 1) G of each weight, G = (p0-1)/p0 · kn; the tied table has a gradient of each of its two uses."""
    config, factors, p = ModelConfig(1, 16, 8, 16, 6, 0.0), alike((4, 1, 1)), 4
    sent, kept = [], []
    for state in ("none", "zero2"):
        model, gathered = ShardedGPT2(config, factors, state), {}
        pieces = {name: piece(1, each, torch.float64) for name, each in model.parameters().items()}
        ids = Value(piece(1, model.input_shards((8, 6)), torch.int64, trained=False), model.input_shards((8, 6)), False)

        async def stage(tape, model=model, pieces=pieces, ids=ids):
            return await model.score(tape, await model.run_layers(tape, range(model.layers), ids, pieces), ids)

        found = [record(1, stage, gathered=gathered) for _ in range(microbatches)]
        sent.append(sum(each.forward.nbytes + each.backward.nbytes for each in found))
        kept.append({each.kept for each in found})
    blocks, table = 12 * 16 * 16, 16 * 16
    share = 8 * (p - 1) / p
    assert sent[1] - sent[0] == share * ((microbatches + 1) * blocks + (2 * microbatches + 1) * table)
    assert kept[0] == kept[1], "weights of the step are no activations"


@pytest.mark.parametrize(
    ("layout", "moves"),
    [
        pytest.param("megatron", 6, id="megatron: statistics of each norm, a gather and a scatter of each pair"),
        pytest.param("data", 0, id="data: each rank computes with its own sequences"),
    ],
)
def test_a_block_is_handed_to_the_device_once_and_after_each_move(layout, moves):
    """18 computations each way, of norms, multiplications, biases, attention, activation and residuals."""
    model = ShardedGPT2(ModelConfig(1, 8, 2, 11, 4, 0.0), factors_of(layout, 2))
    shards, layouts = model.stream((4, 4)), model.parameters()

    async def work(tape):
        run, ops = tape.queue.run, []
        tape.queue.run = lambda op, work: ops.append(op) or run(op, work)
        pieces = {name: torch.ones(each.shape(tape.rank)).requires_grad_() for name, each in layouts.items()}
        y = await tape.run(model.block(tape, 0, Value(torch.ones(shards.shape(tape.rank)), shards), pieces))
        forward = len(ops)
        await tape.run(tape.backward(y, torch.ones_like(y.array)))
        return forward, len(ops) - forward

    assert on_ranks(2, work)[0] == [(1 + moves, 1 + moves)] * 2
