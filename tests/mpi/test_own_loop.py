"""`pipelined.Trainer` on ranks of MPI beside a plain loop over the same microbatches.

Torch's optimizers import its compiler, which takes a second on each rank: every run does that on two ranks alone.
"""

import re

import pytest
import torch
from mpi4py import MPI
from torch import nn

import pipelined as pp
from benchmarks.harness.resident import begin_peak, resident

WORLD = MPI.COMM_WORLD
LOSS = nn.functional.mse_loss

pytestmark = [pytest.mark.full] if WORLD.size != 2 else []


def layers():
    return [lambda: nn.Linear(4, 4), nn.Tanh] * WORLD.size


def inputs():
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(8, 4, generator=generator).double() for _ in range(3)]


def plain():
    torch.manual_seed(0)
    model = nn.Sequential(*[build() for build in layers()]).double()
    optimizer, losses = torch.optim.Adam(model.parameters()), []
    for x in inputs():
        optimizer.zero_grad()
        parts = [LOSS(model(part), part) / 4 for part in x.chunk(4)]
        for part in parts:
            part.backward()
        optimizer.step()
        losses.append(sum(part.item() for part in parts))
    return losses, model.state_dict()


@pytest.mark.mpi
def test_a_users_loop_on_ranks_of_mpi_trains_as_a_plain_loop_does():
    plan = pp.Plan("one_f_one_b", WORLD.size, 1, 2, 4)
    with pp.Trainer(layers(), plan, loss=LOSS, optimizer=torch.optim.Adam, dtype=torch.float64) as trainer:
        losses, state = [trainer.step((x, x)).loss for x in inputs()], trainer.state_dict()
    assert losses == pytest.approx(plain()[0], rel=0, abs=1e-12)
    assert (state is None) == (WORLD.rank > 0)
    for name, value in (state or {}).items():
        torch.testing.assert_close(value, plain()[1][name], rtol=0, atol=1e-12)


@pytest.mark.mpi(min_size=2)
def test_batches_that_differ_by_rank_are_refused_before_the_first_step():
    plan = pp.Plan("one_f_one_b", WORLD.size, 1, 2, 4)
    with pp.Trainer(layers(), plan, loss=LOSS, optimizer=torch.optim.Adam, dtype=torch.float64) as trainer:
        with pytest.raises(pp.UsageError, match="ranks 0 and 1 have different inputs in the batch of step 0; give"):
            trainer.step((inputs()[0] + WORLD.rank, inputs()[0]))
        with pytest.raises(pp.UsageError, match="ranks 0 and 1 have different targets"):
            trainer.step((inputs()[0], inputs()[0] + WORLD.rank))
        assert trainer.step((inputs()[0], inputs()[0])).loss == pytest.approx(plain()[0][0], rel=0, abs=1e-12)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "name, first, last, beside",
    [
        ("seed", 0, 1, {}),
        ("clip", 1.0, 0.0, {}),
        ("steps", 2, 3, {}),
        ("save_every", 0, 1, {}),
        ("scale", "direct", "forward-doubling", {"schedule": "chimera"}),
    ],
)
def test_arguments_that_differ_by_rank_are_refused_on_every_rank(name, first, last, beside, tmp_path):
    """Stages of other seeds trained without a word; a rank with fewer steps than others made these wait forever."""
    chosen = {"steps": 2, "depth": WORLD.size, "checkpoint": tmp_path / "unused", **beside}
    chosen[name] = last if WORLD.rank == WORLD.size - 1 else first
    batches = [(x, x) for x in inputs()]
    fact = f"{name}: {last} here, {first} on rank 0); give every rank equal arguments"
    with pytest.raises(pp.UsageError, match=re.escape(fact)):
        pp.train(layers(), batches, loss=LOSS, optimizer=torch.optim.Adam, dtype=torch.float64, **chosen)
    WORLD.barrier()


@pytest.mark.mpi(min_size=2)
def test_ranks_with_unequal_memory_plan_for_the_least(monkeypatch):
    """Each rank timed the sizes that fit its own memory, so that one waited for the other."""
    here = {"bytes": 5000.0 if WORLD.rank else 1e9}
    monkeypatch.setattr("pipelined.planner.request.share_of_memory", lambda ranks, gpus: here["bytes"])
    chosen = {"loss": LOSS, "schedule": "gpipe", "tries": 0}
    plan = pp.plan(layers(), (inputs()[0].float(),) * 2, **chosen)
    assert max(plan.memory) <= 5000
    assert WORLD.allgather(plan.plan.to_dict()) == [plan.plan.to_dict()] * WORLD.size
    here["bytes"] = 10.0 if WORLD.rank else 1e9
    with pytest.raises(pp.UsageError, match="no plan fits the memory"):
        pp.plan(layers(), (inputs()[0].float(),) * 2, **chosen)
    WORLD.barrier()


@pytest.mark.mpi(min_size=2)
def test_an_export_needs_memory_for_one_parameter_not_for_the_model(tmp_path_factory):
    path = WORLD.bcast(tmp_path_factory.mktemp("export") / "state.pt" if not WORLD.rank else None)
    width, depth = 1448, 12  # 8 MiB each
    rows = [lambda: nn.Linear(width, width, bias=False)] * depth
    plan, sgd = pp.Plan("gpipe", WORLD.size, 1, 1, 2), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    with pp.Trainer(rows, plan, loss=LOSS, optimizer=sgd) as trainer:
        trainer.export(path)  # loads what it needs, and fills what buffers stay
        before = begin_peak()
        trainer.export(path)
        grown = resident("VmHWM") - before
        state = trainer.state_dict()
    assert grown < 3 * width * width * 4, f"rank {WORLD.rank} grew by {grown / 2**20:.1f} MiB"
    if state is not None:
        found = torch.load(path, weights_only=True)
        assert list(found) == list(state)
        assert all(torch.equal(found[name], value) for name, value in state.items())
