"""`pipelined.Trainer` on ranks of MPI beside a plain loop over the same microbatches.

Torch's optimizers import its compiler, which takes a second on each rank: every run does that on two ranks alone.
"""

import pytest
import torch
from mpi4py import MPI
from torch import nn

import pipelined as pp

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
