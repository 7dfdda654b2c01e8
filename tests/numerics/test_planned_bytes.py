"""The bytes that a step was planned to send, beside those that all ranks count in it."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.api.data.batches import BatchFeed
from pipelined.api.rank_session import RankSession
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.training.exchange import compression
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.user_model import TeamRequest, bind
from pipelined.training.planned_bytes import planned_bytes
from tests.conformance.worlds import local_world
from tests.numerics.plain import OPTIMIZER, SEQUENCE, Case
from tests.numerics.teams import EACH, TeamCase
from tests.numerics.test_split_rows import LOSSES, adam, batches, images, words
from tests.numerics.test_split_transformers import encoders
from tests.numerics.trained import on_every_rank, on_ranks
from transports import pack

CASES = [
    (Case("chimera", 4, 2, 4), "ring", {}),
    (Case("one_f_one_b", 2, 1, 3), "auto", {"exact_sums": True}),
    (Case("pipedream_2bw", 2, 2, 4), "ring", {"optimizer_settings": replace(OPTIMIZER, clip=0.0)}),
    (TeamCase("gpipe", 1, 2, 2, layers=2, layout="data"), "ring", {}),
    (TeamCase("gpipe", 2, 2, 2, layers=1, layout="data"), "ring", {"shard_optimizer": True}),
    (TeamCase("one_f_one_b", 1, 2, 2, layers=1, layout="data+zero3", recompute=True), "ring", {}),
    (TeamCase("one_f_one_b", 1, 1, 2, layers=1, layout="data+zero3"), "ring", {"shard_optimizer": True}),
    (TeamCase("zb_h1", 2, 1, 3, layers=1, layout="data+zero2"), "ring", {"shard_optimizer": True}),
    (TeamCase("chimera", 2, 1, 2, layers=1, layout="data+zero2", recompute=True), "ring", {}),
    (TeamCase("one_f_one_b", 2, 1, 2, layers=2, recompute=True, dropout=0.2), "ring", {}),
]


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("case", "all_reduce", "numerics"), CASES, ids=str)
def test_a_step_sends_what_was_planned(case, all_reduce, numerics):
    plan, ids = case.plan, torch.empty(case.plan.rows, SEQUENCE, dtype=torch.int64)
    cut = partition(case.model.costs(SEQUENCE), plan.depth)

    async def both(trainer, transport):
        sums = await trainer.planned_sum_bytes()
        planned = await planned_bytes(trainer, cut, (ids, ids), Numerics(recompute=case.recompute), sums=sums)
        reports = []
        if trainer.plan.flushes:
            await trainer.step(0)  # with exact sums it takes two passes
            reports.append(await trainer.step(1))
        else:  # steps overlap: of the last one a rank sends something after it has counted
            reports.append(await trainer.train(range(5), on_step=reports.append))
        return planned * len(reports), sum(report.nbytes for report in reports)

    found = on_every_rank(case, both, torch.float64, all_reduce=all_reduce, **numerics)
    planned, (sent,) = sum(planned for planned, _ in found), {sent for _, sent in found}
    assert sent == planned if plan.flushes else 0.95 * planned < sent <= planned


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("layout", "nodes"), [("mixed", (0, 0, 0, 0)), (EACH, (0, 0, 2, 2))], ids=str)
def test_moves_through_shared_memory_are_planned_to_send_nothing(layout, nodes):
    """A team of four ranks on one node, or on two: then moves of ranks of both nodes send what they send by rings."""
    case = TeamCase("one_f_one_b", 1, 1, 2, layers=1, tensor=4, layout=layout)
    cut, ids = partition(case.model.costs(SEQUENCE), 1), torch.empty(case.plan.rows, SEQUENCE, dtype=torch.int64)

    async def both(trainer):
        sums = await trainer.planned_sum_bytes()
        planned = await planned_bytes(trainer, cut, (ids, ids), Numerics(), sums=sums)
        report = await trainer.step(0)
        return planned, report.nbytes, report.loss

    def trained(all_reduce):
        job = case.job(torch.float64, all_reduce=all_reduce)
        found = on_ranks(job, both, local_world(4, nodes, shared_memory=True))
        (sent,), (loss,) = {sent for _, sent, _ in found}, {loss for _, _, loss in found}
        assert sent == sum(planned for planned, _, _ in found)
        return sent, loss

    (sent, loss), (by_rings, same) = trained("auto"), trained("ring")
    assert loss == pytest.approx(same, rel=1e-12)
    assert sent == 0 if len(set(nodes)) == 1 else 0 < sent < by_rings


ROWS_OF_LAYERS = [
    (images, Plan("one_f_one_b", 2, 2, 2, 3), {}),
    (images, Plan("gpipe", 1, 2, 4, 2, tensor=2), {"shard_optimizer": True}),
    (images, Plan("zb_h1", 2, 1, 4, 2, tensor=2), {"recompute": True}),
    (words, Plan("chimera", 2, 1, 4, 2, tensor=2), {}),
    (encoders, Plan("gpipe", 2, 1, 2, 4, tensor=2), {}),
]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("layers", "plan", "numerics"), ROWS_OF_LAYERS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_step_of_a_row_of_layers_sends_what_was_planned(layers, plan, numerics):
    """With running statistics, a tied weight, and layers that a team keeps whole."""
    step = tuple(torch.cat([each, each])[: plan.batch] for each in batches(layers)[0])
    feed, example = BatchFeed([step] * 2), tuple(each[: plan.rows] for each in step)
    feed.configure(plan.rows, torch.float64, cached_steps=2)
    model = bind(layers(), LOSSES[layers], 5, example[0], TeamRequest(plan.tensor, None, plan.rows))
    numerics = Numerics(dtype=torch.float64, all_reduce="ring", **numerics)
    job = JobDescription(
        model=model, plan=plan, feed=feed, optimizer_settings=UserOptimizer(adam), numerics=numerics, seed=5
    )

    async def both(trainer):
        cut = partition(model.costs(1), plan.depth)
        sums = await trainer.planned_sum_bytes()
        planned = await planned_bytes(trainer, cut, example, numerics, sums=sums)
        await trainer.step(0)
        return planned, (await trainer.step(1)).nbytes

    found = on_ranks(job, both)
    assert {sent for _, sent in found} == {sum(planned for planned, _ in found)}


def test_an_error_of_the_preparation_is_no_layer_that_needs_values():
    """Else this rank would go on while others still prepare."""
    case, ids = Case("gpipe", 1, 1, 1, layers=1), torch.empty(1, SEQUENCE, dtype=torch.int64)

    async def failing():
        raise ConnectionError("rank 1 is lost")

    async def planned(trainer, transport):
        trainer.planned_sum_bytes = failing
        with pytest.raises(ConnectionError):
            none = dict.fromkeys(["settings", "claims", "saver", "memory_estimate"])
            await RankSession(SimpleNamespace(numerics=Numerics()), trainer, **none).planned_bytes((ids, ids))

    on_every_rank(case, planned)


def test_a_step_counts_all_messages_that_a_codec_codes_in_threads(monkeypatch):
    """Two ranks, two microbatches of (2, 8) in 16 bits there and back: 128 bytes in each step."""

    def slowly(*given):
        time.sleep(0.01)
        return pack(*given)

    monkeypatch.setattr(compression, "pack", slowly)
    planned, sent = bytes_of_products(3, compress="bf16")
    assert sent == [planned] * 3 == [2 * 2 * 2 * 8 * 2] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_stage_that_ends_in_a_product_sends_the_dtype_of_autocast(dtype):
    planned, sent = bytes_of_products(1, autocast=dtype)
    assert sent == [planned] == [2 * 2 * 2 * 8 * 2]


def test_the_scale_of_a_short_block_is_planned():
    """A message is 16 codes of a byte and a scale of 4 bytes."""
    planned, sent = bytes_of_products(1, compress="blockwise8")
    assert sent == [planned] == [2 * 2 * (2 * 8 + 4)]


def bytes_of_products(steps, **numerics):
    """The bytes planned and those of each step, of two stages that end in products and are 8 numbers wide."""
    plan, rows = Plan("gpipe", 2, 1, 2, 2), (torch.randn(4, 8), torch.randn(4, 8))
    feed, numerics = BatchFeed([rows] * steps), Numerics(dtype=torch.float32, **numerics)
    feed.configure(plan.rows, torch.float32, cached_steps=2)
    layers = pp.Sequential([lambda: nn.Linear(8, 8), lambda: nn.Linear(8, 8)])
    model = bind(layers, nn.functional.mse_loss, 5, rows[0][:2], TeamRequest(1, None, plan.rows))
    job = JobDescription(
        model=model, plan=plan, feed=feed, optimizer_settings=UserOptimizer(adam), numerics=numerics, seed=5
    )

    async def both(trainer):
        example, sums = tuple(each[:2] for each in rows), await trainer.planned_sum_bytes()
        planned = await planned_bytes(trainer, partition(model.costs(1), 2), example, numerics, sums=sums)
        return planned, [(await trainer.step(step)).nbytes for step in range(steps)]

    (first, sent), (second, _) = on_ranks(job, both)
    return first + second, sent
