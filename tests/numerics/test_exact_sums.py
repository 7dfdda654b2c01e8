"""Exact sums: one digest of all parameters after some steps, whatever the arrangement."""

import asyncio
from functools import cache

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.programs.updates.exact_grid import Grid
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.traces.tracer import NOWHERE, Tracer
from pipelined.training.digests import model_digest
from pipelined.training.sums.exact_sums import ExactSums
from tests.numerics.arrangements import grid, name
from tests.numerics.plain import Case, plain
from tests.numerics.trained import on_every_rank, opened
from transports import new_event_loop
from transports.local import world

STEPS = 3
ALONE = Case("gpipe", 1, 1, 8, dropout=0.1)


def case(schedule, depth, width, pipes=0, **more):
    return Case(schedule, depth, width, 8 // width, pipes=pipes, **{"dropout": 0.1, **more})


def trained(case, change=lambda trainer, step: None, exact=True, **numerics):
    """The digest after some steps; `change` is called before each."""

    async def train(trainer, transport):
        for step in range(STEPS):
            change(trainer, step)
            await trainer.step(step)
        return await model_digest(transport, trainer.local)

    return on_every_rank(case, train, exact_sums=exact, **numerics)[0]


@pytest.fixture(scope="module")
def expected():
    return trained(ALONE)


ARRANGEMENTS = [("gpipe", 1, 4), ("one_f_one_b", 4, 2), ("chimera", 4, 2), ("chimera_w", 4, 1), ("zb_h1", 2, 2)]
MORE = [("gpipe", 3, 1), ("interleaved", 2, 1), ("chimera", 4, 1, 4), ("dualpipe", 4, 1), ("zb_v", 2, 1)]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    "arrangement",
    [*ARRANGEMENTS, *(pytest.param(one, marks=pytest.mark.full) for one in MORE)],
    ids=lambda one: "-".join(map(str, one)),
)
def test_the_parameters_have_the_same_bits_in_every_arrangement(arrangement, expected):
    assert trained(case(*arrangement)) == expected


@cache
def one_rank(microbatches, dropout, tied):
    return trained(Case("gpipe", 1, 1, microbatches, dropout=dropout, tied=tied))


@pytest.mark.full
@pytest.mark.parametrize("one", [one for one in grid() if one.scale == "direct"], ids=name)
def test_the_whole_grid_has_the_bits_of_one_rank(one):
    assert trained(one) == one_rank(one.plan.total_microbatches, one.dropout, one.tied)


@pytest.mark.parametrize(
    "algorithm", ["ring", *(pytest.param(one, marks=pytest.mark.full) for one in ("rabenseifner", "multi_ring"))]
)
def test_the_algorithm_of_the_sums_and_recomputation_change_no_bit(algorithm, expected):
    async def train(trainer, transport):
        for step in range(STEPS):
            await trainer.step(step)
        return await model_digest(transport, trainer.local)

    one = case("chimera", 2, 2, recompute=True)
    assert on_every_rank(one, train, exact_sums=True, all_reduce=algorithm)[0] == expected


def test_a_forward_in_bfloat16_has_bits_of_its_own_and_the_same_in_every_arrangement(expected):
    one = trained(ALONE, autocast=torch.bfloat16)
    assert one != expected
    for other in (("chimera", 4, 2), ("zb_h1", 2, 2)):
        assert trained(case(*other), autocast=torch.bfloat16) == one


def test_plain_sums_do_depend_on_the_arrangement():
    assert trained(ALONE, exact=False) != trained(case("gpipe", 1, 4), exact=False)


def test_two_uses_of_a_tied_weight_that_autograd_adds_first_are_noticed(monkeypatch, expected):
    monkeypatch.setattr(ExactSums, "begin_backward", lambda self, outputs: None)
    assert trained(ALONE) != expected


def test_summands_that_do_not_fit_their_grid_run_the_step_again_and_change_no_bit(monkeypatch, expected):
    collected, one = [], case("one_f_one_b", 2, 1)
    collect = ExactSums.collect
    monkeypatch.setattr(ExactSums, "collect", lambda self, stage: (collected.append(stage), collect(self, stage)))
    counts = []

    def narrow(trainer, step):
        counts.append(len(collected))
        grids = trainer.accumulation.grids
        if step == 2 and trainer.context.actor.rank == 1:
            name = min(grids)
            grids[name] = Grid(grids[name].exponent - 20)

    assert trained(one, narrow) == expected
    once = one.microbatches * one.depth
    first, second, third, end = *sorted(counts)[::2], len(collected)
    assert (second - first, third - second, end - third) == (2 * once, once, 2 * once)


def test_resume_at_another_arrangement_is_bit_equal(tmp_path, expected):
    async def begin(trainer, transport):
        await trainer.step(0)
        await trainer.step(1)
        await save(trainer, 2, SaveTarget(tmp_path, keep=1))

    async def go_on(trainer, transport):
        (path,) = tmp_path.glob("step-*")
        assert await load(trainer, path) == 2
        grids = len(trainer.accumulation.grids)
        await trainer.step(2)
        return grids, await model_digest(transport, trainer.local)

    on_every_rank(case("one_f_one_b", 2, 2), begin, exact_sums=True)
    (grids, digest), *_ = on_every_rank(case("chimera", 4, 1), go_on, exact_sums=True)
    assert (grids > 0, digest) == (True, expected)


def test_the_numbers_are_those_of_a_plain_loop():
    one, found = case("zb_h1", 2, 1), []

    async def train(trainer, transport):
        return [(await trainer.step(step)).loss for step in range(5)]

    found = on_every_rank(one, train, torch.float64, exact_sums=True)[0]
    assert found == pytest.approx(plain(one).losses, rel=1e-9)


def layers():
    return [lambda: nn.Linear(6, 6), nn.Tanh, lambda: nn.Linear(6, 6, bias=False), lambda: nn.Linear(6, 6)]


def own(depth, width, schedule="one_f_one_b", rows=layers, **options):
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(16, 6, generator=generator), torch.randn(16, 6, generator=generator)) for _ in range(3)]
    torch.manual_seed(0)
    return pp.train(
        rows(), batches, loss=nn.functional.mse_loss, optimizer=torch.optim.Adam, schedule=schedule, depth=depth,
        width=width, microbatches=4 // width, exact_sums=True, transport="local", **options,
    )  # fmt: skip


def test_a_users_own_model_has_the_same_bits_in_every_arrangement():
    states = [own(1, 1).state, own(2, 2).state, own(4, 1).state, own(2, 1, "zb_h1").state]
    for state in states[1:]:
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())


def test_running_statistics_are_refused_by_the_stage_that_has_them():
    with pytest.raises(pp.UsageError, match="running statistics"):
        own(2, 1, rows=lambda: [lambda: nn.Linear(6, 6), lambda: nn.BatchNorm1d(6), lambda: nn.Linear(6, 6)])


def test_a_traced_run_has_one_pass_of_each_step():
    """The first step takes two passes, of which the first is in vain; --replay reads one."""
    tracer = Tracer(lambda: 0.0)
    one = Case("gpipe", 1, 1, 2)

    async def rank(transport):
        job = one.job(exact_sums=True)
        async with opened(transport, job, tracer) as trainer:
            await trainer.step(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(rank(world(1)[0]))
    events = tracer.events()
    kinds = [events.kinds[kind] for kind in events.kind]
    forwards = [
        coordinates[0] for coordinates, kind in zip(events.coordinates, kinds, strict=True) if kind[1] == "forward"
    ]
    assert sorted(forwards) == [NOWHERE, NOWHERE, 0, 0]
