"""A row of layers over the ranks of a worker by the layout that is searched: its price is what its ranks send."""

import pytest
import torch
from torch import nn

from collectives import Links
from pipelined.api.data.batches import BatchFeed
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.programs.plan import Plan
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.split.search import RowSearch
from pipelined.training.models.user_model import TeamRequest, bind
from tests.numerics.test_split_rows import adam
from tests.numerics.trained import on_ranks

ROWS = 4
LAYERS = [lambda: nn.Linear(8, 16), nn.Tanh, lambda: nn.Linear(16, 8), lambda: nn.Linear(8, 4)]


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("tensor", [2, 4])
def test_a_team_sends_the_bytes_for_which_its_layout_was_chosen(tensor, microbatches):
    """All sizes divide evenly, so every rank sends as many as the busiest."""
    plan = Plan("gpipe", 1, 1, ROWS, microbatches, tensor=tensor)
    step = torch.ones(plan.batch, 8, dtype=torch.float64), torch.zeros(plan.batch, 4, dtype=torch.float64)
    feed = BatchFeed([step] * 2)
    feed.configure(plan.rows, torch.float64, cached_steps=2)
    model = bind(LAYERS, nn.functional.mse_loss, 5, step[0][:ROWS], TeamRequest.of(plan, "auto", torch.float64))
    wanted = RowSearch(
        row=model.whole.meta_layers,
        aliases={},
        ranks=tensor,
        inputs=step[0][:ROWS].to("meta"),
        dtype=torch.float64,
        microbatches=microbatches,
        links=Links(0.0, 1.0, 0.0),
    )
    cheapest, _ = wanted.find_fastest()
    model = bind(LAYERS, nn.functional.mse_loss, 5, step[0][:ROWS], TeamRequest(tensor, wanted.layout(), ROWS))
    numerics = Numerics(dtype=torch.float64, all_reduce="ring")
    job = JobDescription(
        model=model, plan=plan, feed=feed, optimizer_settings=UserOptimizer(adam), numerics=numerics, seed=5
    )

    async def sent(trainer):
        await trainer.step(0)
        return (await trainer.step(1)).nbytes

    (nbytes,) = set(on_ranks(job, sent))
    assert nbytes == tensor * cheapest
