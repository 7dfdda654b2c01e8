"""The layout that is searched for a row, beside every layout priced by the record of the code that trains."""

from itertools import pairwise, product

import pytest
import torch
from torch import nn

import pipelined as pp
from collectives import Links
from pipelined.sharding.operators.tape import sum_path
from pipelined.sharding.search.matmul import factorizations
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.sequential import LayeredModel
from pipelined.training.models.split.search import RowSearch
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.teams.team_records import team_records

BYTES = Links(0.0, 1.0, 0.0)
"""Links over which a byte takes a second."""


def dense(*widths):
    return [lambda a=a, b=b: nn.Linear(a, b) for a, b in pairwise(widths)]


def tied():
    begin = pp.tied("words", lambda: nn.Embedding(12, 8))
    return [begin, *dense(8, 16), nn.GELU, *dense(16, 8), pp.tied("words", lambda: nn.Linear(8, 12, bias=False))]


def attending():
    return [lambda: pp.SelfAttention(8, 2), lambda: nn.LayerNorm(8), *dense(8, 4)]


def encoding():
    return [lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0, norm_first=True)]


def images():
    return [lambda: nn.Conv2d(2, 4, 3), lambda: nn.BatchNorm2d(4), nn.ReLU, nn.Flatten, *dense(16, 8)]


class Whole(nn.Module):
    """A layer that no table knows."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x)


def split(layers, x, ranks, layout, **sizes):
    whole = LayeredModel(pp.Sequential(layers), lambda y, _: y.square().mean(), 0, x)
    return SplitRow(whole, x, ranks=ranks, layout=layout, rows=len(x), **sizes)


def recorded(row, x):
    """The moves of a microbatch, and the sums of a step that depend on factors, as a team's last member makes them."""
    example, last = (x.to("meta"), torch.empty(len(x), device="meta")), row.ranks - 1
    cut = [range(row.layers)]
    (stage_record,) = team_records(row, cut, example, torch.float32, Numerics(), member=last, held=[0])
    micro = [move.path for move in (*stage_record.forward, *stage_record.backward)]
    return micro, [sum_path(shards) for shards in row.parameters().values() if "rows" in shards.mesh.sizes]


def every_layout(names, ranks):
    for factors in product(factorizations(ranks), repeat=len(names)):
        yield ",".join(f"{name}={'.'.join(map(str, f))}" for name, f in zip(names, factors, strict=True))


def test_data_parallelism_and_megatron_have_the_prices_of_their_closed_forms():
    """64 - 256 - 64 of 32 rows over 4 ranks: a team gathers 3/4 of the output of 32 x 64 for the loss, either way."""
    row, x = dense(64, 256, 64), torch.empty(32, 64)
    gathered = 3 / 4 * 32 * 64 * 4
    weights = 64 * 256 * 2 + 256 + 64
    expected = {"data": (gathered, 2 * 3 / 4 * weights * 4), "megatron": (3 * gathered, 0)}  # 1.4.1 and 1.1.4
    for layout, (micro, step) in expected.items():
        moves, sums = recorded(split(row, x, 4, layout), x)
        seconds = [sum(path.seconds(BYTES) for path in paths) for paths in (moves, sums)]
        assert seconds == [micro, step], layout
    assert split(row, x, 4, "auto").describe().startswith("layout: auto, 4 ranks a worker; 0 (Linear) 1.4.1, 1 (Lin")


CHAINS = {
    "two layers": (dense(6, 16, 8), torch.empty(4, 6), ["0", "1"], 4),
    "three layers": (dense(8, 4, 16, 6), torch.empty(8, 8), ["0", "1", "2"], 2),
    "uneven sizes": (dense(5, 7, 3), torch.empty(3, 5), ["0", "1"], 3),
    "between others": ([*dense(8, 8), nn.Tanh, Whole, *dense(8, 8)], torch.empty(4, 8), ["0", "3"], 4),
    "tied": (tied(), torch.zeros(4, 3, dtype=torch.int64), ["0", "1", "3", "4"], 2),
    "attention": (attending(), torch.empty(4, 3, 8), ["0.in_proj", "0.out_proj", "2"], 2),
    "a Transformer's layer": (
        encoding(),
        torch.empty(4, 3, 8),
        ["0.self_attn.in_proj", "0.self_attn.out_proj", "0.linear1", "0.linear2"],
        2,
    ),
    "images": (images(), torch.empty(4, 2, 4, 4), ["0", "4"], 2),
}


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    "chain",
    [pytest.param(name, marks=[pytest.mark.full] if "Transformer" in name else []) for name in CHAINS],
)
def test_no_layout_of_a_row_moves_for_a_shorter_time(chain):
    layers, x, names, ranks = CHAINS[chain]
    records = {}
    for layout in every_layout(names, ranks):
        try:
            row = split(layers, x, ranks, layout)
            records[layout] = recorded(row, x)
        except pp.UsageError:  # too few heads, or a tied weight in two layouts
            continue
    for links, microbatches in ((BYTES, 1), (BYTES, 3), (Links(), 2)):
        search = RowSearch(
            row=row.whole.meta_layers,
            aliases=row.whole.aliases,
            ranks=ranks,
            inputs=x.to("meta"),
            microbatches=microbatches,
            links=links,
        )
        priced = {
            layout: microbatches * sum(path.seconds(links) for path in micro)
            + sum(path.seconds(links) for path in sums)
            for layout, (micro, sums) in records.items()
        }
        assert len(set(priced.values())) > 2
        assert search.find_fastest()[0] == pytest.approx(min(priced.values()), rel=1e-9)
        assert priced[search.layout()] == pytest.approx(min(priced.values()), rel=1e-9)
