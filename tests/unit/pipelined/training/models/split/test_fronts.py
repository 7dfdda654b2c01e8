"""The layouts of a row's front beside every layout, priced and weighed by the record of the code that trains."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from pipelined.errors import UsageError
from pipelined.sharding.operators.tape import sum_path
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.split.fronts import row_front
from pipelined.training.models.split.search import RowSearch
from pipelined.training.teams.team_records import team_records
from tests.unit.pipelined.training.models.split.test_search import BYTES, CHAINS, dense, every_layout, split

CUTS = {"two layers": [[], [1]], "three layers": [[1, 2]], "tied": [[3]], "attention": [[1]], "images": [[3]]}
"""Where stages begin, in some of these rows."""


def chain_of(row, x, starts):
    return RowSearch(
        row=row.whole.meta_layers,
        aliases=row.whole.aliases,
        ranks=row.ranks,
        inputs=x.to("meta"),
        starts=starts,
        links=BYTES,
        counts_kept=True,
    )


def record_stages(row, x, starts):
    """Of each stage: the seconds of its moves each way, the bytes that it keeps, its sums, and its numbers."""
    example, last = (x.to("meta"), torch.empty(len(x), device="meta")), row.ranks - 1
    cut = [range(*pair) for pair in pairwise([0, *starts, row.layers])]
    records = team_records(row, cut, example, torch.float32, Numerics(), member=last, held=range(len(cut)))
    costs, seen = [], set()
    for layers, stage_record in zip(cut, records, strict=True):
        seconds = [
            sum(move.path.seconds(BYTES) for move in moves) for moves in (stage_record.forward, stage_record.backward)
        ]
        new_shards = {
            name: row.parameters()[name] for name, _ in row.build(layers, torch.float32, "meta", 0).named_parameters()
        }
        new_shards = {name: shards for name, shards in new_shards.items() if name not in seen}
        seen |= new_shards.keys()
        sums = sum(sum_path(shards).seconds(BYTES) for shards in new_shards.values())
        costs.append(
            [*seconds, stage_record.kept_bytes, sums, sum(shards.size(last) for shards in new_shards.values())]
        )
    return np.array(costs, float)


def record_every_layout(name, starts):
    layers, x, names, ranks = CHAINS[name]
    costs = {}
    for layout in every_layout(names, ranks):
        try:
            row = split(layers, x, ranks, layout)
            costs[layout] = record_stages(row, x, starts)
        except UsageError:  # too few heads, or a tied weight in two layouts
            continue
    return row, x, costs


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("name", "starts"), [(name, each) for name, cuts in CUTS.items() for each in cuts])
def test_within_any_memory_the_best_layout_is_on_the_front(name, starts):
    row, x, layout_costs = record_every_layout(name, starts)
    chain = chain_of(row, x, starts)
    front = row_front(chain, 1)
    assert len(front.factors) < len(layout_costs)
    truth = np.array([layout_costs[chain.layout_text(factors)] for factors in front.factors])
    loss = truth[0, -1, 2] - front.costs[0, -1, 2]  # what it keeps is the same in all layouts, and left out
    truth[:, -1, 2] -= loss
    assert loss >= 0 and front.costs == pytest.approx(truth, rel=1e-9, abs=1e-9)
    random = np.random.default_rng(3)
    for _ in range(60):
        prices, states = random.random((len(starts) + 1, 5)), random.random((len(starts) + 1, 2))
        nbytes = {layout: (costs[:, [2, 4]] * states).sum() for layout, costs in layout_costs.items()}
        limit = np.quantile(list(nbytes.values()), random.random())
        best = min((layout_costs[layout] * prices).sum() for layout in layout_costs if nbytes[layout] <= limit)
        layouts = [chain.layout_text(factors) for factors in front.factors]
        least = min((layout_costs[layout] * prices).sum() for layout in layouts if nbytes[layout] <= limit)
        assert least == pytest.approx(best)


def test_a_front_of_many_combinations_has_the_shortest_by_each_price_of_a_byte(monkeypatch):
    layers, x = dense(32, 64, 32, 64, 32), torch.empty(128, 32)
    row = split(layers, x, 4, "data")
    chain = chain_of(row, x, [2])
    whole_front = row_front(chain, 2)
    monkeypatch.setattr("pipelined.training.models.split.fronts.MAX_LAYOUTS", 1)
    few = row_front(chain, 2)
    assert 1 < len(few.factors) < len(whole_front.factors)
    forward, backward, kept, update, numbers = np.moveaxis(whole_front.costs, 2, 0)
    seconds, nbytes = (2 * (forward + backward) + update).sum(axis=1), (kept + 16 * numbers).sum(axis=1)
    written = {chain.layout_text(factors) for factors in few.factors}
    for price in (0.0, 0.01, 0.1, 1.0):
        paid = seconds + price * nbytes
        best = np.flatnonzero(np.isclose(paid, paid.min(), rtol=0.02))
        assert written & {chain.layout_text(whole_front.factors[place]) for place in best}
