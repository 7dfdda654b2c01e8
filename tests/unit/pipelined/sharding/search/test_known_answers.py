"""What the paper and its closed forms fix: figures, tables, and the best strategies, in elements and seconds."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.gpt2.planning.operators import blocks
from collectives import Links
from pipelined.sharding.search.build_problem import build_problem
from pipelined.sharding.search.chain import Chain, chain_of, read_chain
from pipelined.sharding.search.methods.registry import find
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.pricing import PricedChain
from pipelined.sharding.search.report import ShardRequest, find_sharding
from pipelined.sharding.search.strategy import format_split, price

BYTES = Links(0.0, 1.0, 0.0)
"""Links on which seconds are bytes."""
MI = 2**20
TOKENS, WIDTH = 2**20, 8192
BLOCK = f"{TOKENS}:{WIDTH}-{3 * WIDTH}/{WIDTH}-{WIDTH}-{4 * WIDTH}-{WIDTH}"


def priced_chain(chain, *levels, links=BYTES, far=None, microbatches=1, free_streams=False):
    return PricedChain(chain, levels, Network(replace(links, far=far), chain.itemsize), microbatches, free_streams)


def search_layouts(chain, *levels, replicas=None, limit=inf, **options):
    return find_sharding(ShardRequest(priced_chain(chain, *levels, **options), replicas=replicas, limit=limit))


def model(width, heads=None, layers=1):
    """Blocks of this width; None: as many heads as columns, which no split exceeds."""
    return ModelConfig(layers=layers, d_model=width, heads=heads or width, vocab=1)


def total(priced):
    return sum(priced.elements.values())


def factors(priced):
    return [format_split(row.option.split) for row in priced.rows]


def priced_by(chain, ranks, *splits):
    """The price of given factors, one string an operator."""
    chain_on_ranks = priced_chain(chain, ranks)
    options = [
        [option for option in chain_on_ranks.options(op) if format_split(option.split) == split]
        for op, split in zip(chain.operators, splits, strict=True)
    ]
    built = build_problem(chain_on_ranks, options)
    return price(built, tuple(0 for _ in built.problem.choices))


@pytest.mark.parametrize(
    ("splits", "forward", "backward", "update"),
    [
        (("1.4.1", "1.1.4"), 12288, 12288, 0),
        (("4.1.1", "4.1.1"), 0, 0, 196608),
        (("2.2.1", "2.1.2"), 4096, 4096, 65536),
    ],
)
def test_a_small_feed_forward_moves_these_bytes(splits, forward, backward, update):
    elements = priced_by(read_chain("32:64-256-64"), 4, *splits).elements
    assert [4 * elements[phase] for phase in ("forward", "backward", "update")] == [forward, backward, update]


def test_figure_3_has_one_strategy_that_moves_least_forward():
    chain_on_ranks = priced_chain(read_chain(f"{TOKENS}:{WIDTH}-{3 * WIDTH}/{WIDTH}-{WIDTH}"), 64)
    pairs = {}
    for first in chain_on_ranks.options(chain_on_ranks.chain.operators[0], 4):
        for second in chain_on_ranks.options(chain_on_ranks.chain.operators[1], 4):
            built = build_problem(chain_on_ranks, [[first], [second]])
            pairs[format_split(first.split), format_split(second.split)] = price(built, (0, 0)).elements
    least = min(elements["forward"] for elements in pairs.values())
    assert [pair for pair, elements in pairs.items() if elements["forward"] == least] == [("4.8.2", "4.4.4")]
    assert least == 2**31 and pairs["4.16.1", "4.1.16"]["forward"] == 15 * 2**28
    assert {pairs[pair]["update"] for pair in (("4.8.2", "4.4.4"), ("4.16.1", "4.1.16"))} == {25165824}


@pytest.mark.parametrize(
    ("ranks", "data", "megatron_1d", "megatron", "summa", "least"),
    [
        (8, 1344, 57344, 8768, None, 8768),
        (16, 1440, 61440, 12576, 32688, 11552),
        (64, 1512, 64512, 15432, 19068, 9800),
        (256, 1530, 65280, 16146, 10215, 5906),
    ],
)
def test_a_block_moves_what_the_table_has(ranks, data, megatron_1d, megatron, summa, least):
    result = search_layouts(read_chain(BLOCK, closed=True), ranks, replicas=4)
    told = {name: total(priced) / MI for name, priced in result.baselines.items()}
    assert (told["data"], told["megatron_1d"], told["megatron"], told.get("summa")) == (
        data,
        megatron_1d,
        megatron,
        summa,
    )
    assert total(result.best) / MI == least


@pytest.mark.parametrize(
    ("ranks", "best"),
    [
        (16, ["4.4.1", "4.2.2", "4.4.1", "4.1.4"]),
        (64, ["4.8.2", "4.4.4", "4.8.2", "4.2.8"]),
        (256, ["4.16.4", "4.8.8", "4.16.4", "4.4.16"]),
    ],
)
def test_the_tables_strategies_move_as_little_as_any(ranks, best):
    chain = read_chain(BLOCK, closed=True)
    assert total(priced_by(chain, ranks, *best)) == total(search_layouts(chain, ranks, replicas=4).best)


@pytest.mark.parametrize(("ranks", "least"), [(8, 1344), (16, 1440), (64, 1512)])
def test_without_a_cap_data_parallelism_wins_and_ties_at_64(ranks, least):
    chain = read_chain(BLOCK, closed=True)
    assert total(search_layouts(chain, ranks).best) / MI == least
    if ranks == 64:
        assert total(priced_by(chain, 64, "64.1.1", "64.1.1", "32.2.1", "32.1.2")) / MI == least


@pytest.mark.parametrize(("microbatches", "least"), [(1, 1888), (4, 4031), (16, 6416), (64, 7304)])
def test_zero_beats_the_paper_in_the_state_that_four_replicas_take(microbatches, least):
    """The residual stream keeps one layout throughout; the paper's best moves 9,800 Mi in the same memory."""
    limit = 4 * 4 * 12 * WIDTH**2 / 16
    for chain in (read_chain(BLOCK, closed=True), Chain(blocks(model(WIDTH), TOKENS, normed=False))):
        result = search_layouts(chain, 64, limit=limit, microbatches=microbatches, free_streams=True)
        assert total(result.best) / MI == least and result.best.memory_bytes <= limit


def test_a_narrow_block_splits_its_feed_forward_alone():
    result = search_layouts(read_chain("8192:768-2304/768-768-3072-768", closed=True), 8)
    assert total(result.best) / MI == 10.3125
    assert factors(result.best) == ["8.1.1", "8.1.1", "4.2.1", "4.1.2"]
    assert total(result.baselines["data"]) / MI == 11.8125
    assert total(priced_by(result.request.priced_chain.chain, 8, "4.2.1", "4.1.2", "4.2.1", "4.1.2")) / MI == 11.0625


def test_on_two_nodes_of_sixteen_a_small_model_is_data_parallel():
    """Section 5.3.3: 24 blocks of width 1,024, 2^21 tokens, 100 Gb/s between nodes; 200 GB/s reached inside, of 600."""
    chain = Chain(blocks(model(1024, layers=24), 2**21, normed=False))
    result = search_layouts(chain, 2, 16, links=Links(5e-6, 1 / 200e9, 0), far=Links(2e-5, 1 / 12.5e9, 0))
    assert factors(result.best) == ["2.1.1/16.1.1"] * 4
    assert result.best.seconds == result.baselines["data"].seconds


VGG13 = [(25088, 25088), (4096, 4096), (4096, 4096), (1000, 1000)]
CONVOLUTIONS = [3, 64, 64, 128, 128, 256, 256, 512, 512, 512, 512]


def test_most_of_vgg13_is_in_its_dense_layers():
    dense = sum(inputs * outputs for (inputs, _), (outputs, _) in pairwise(VGG13))
    biases = sum(width for width, _ in VGG13[1:]) + sum(CONVOLUTIONS[1:])
    kernels = sum(9 * inputs * outputs for inputs, outputs in pairwise(CONVOLUTIONS))
    assert (dense, dense + biases + kernels) == (123_633_664, 133_047_848)


@pytest.mark.parametrize(("ranks", "least"), [(16, 1_807_232), (32, 2_734_208), (64, 3_936_512)])
def test_vgg13_dense_layers_after_convolutions_by_images(ranks, least):
    result = search_layouts(chain_of(8 * ranks, VGG13, by_rows=True), ranks)
    assert total(result.best) == least
    assert result.best.elements["update"] == 0  # no weight has a replica, as in Figure 7


@pytest.mark.parametrize(
    ("ranks", "milliseconds", "best", "space"),
    [
        (128, 8.152, ["1.8.16", "2.8.8", "4.4.8", "4.4.8"], 36**4),
        (4096, 8.986, ["8.16.32", "16.16.16", "16.16.16", "16.16.16"], 68_574_961),
    ],
)
def test_figure_8_has_these_optima(ranks, milliseconds, best, space):
    result = search_layouts(read_chain("1024:32768-16384-4096-2048-512"), ranks, links=Links(20e-6, 1 / 8.5e9, 0))
    assert round(1e3 * result.best.seconds, 3) == milliseconds
    assert (factors(result.best), result.space) == (best, space)


def test_a_small_block_moves_these_bytes_with_the_statistics_of_its_norms():
    """B 8, T 8, C 128, H 16, float64 on 64 ranks, the streams cut by columns; cut by tokens, norms sum less."""
    chain = Chain(blocks(model(128, heads=16), 64, sequences=8), itemsize=8)
    chain_on_ranks = priced_chain(chain, 64)
    splits = dict(zip((op.name for op in chain.operators), ["4.8.2", "4.4.4", "4.8.2", "4.2.8"], strict=True))
    options = [
        [o for o in chain_on_ranks.options(op) if format_split(o.split) == splits[op.name]] for op in chain.operators
    ]
    built = build_problem(chain_on_ranks, options)
    by_columns = [choice.options.index((4,)) if (4,) in choice.options else 0 for choice in built.problem.choices]
    priced = price(built, tuple(by_columns))
    assert [8 * number for number in priced.elements.values()] == [39872, 39872, 147456]
    assert priced.seconds == built.problem.seconds(tuple(by_columns)) == 39872 * 2 + 147456
    by_tokens = price(built, find("dynamic").search(built.problem).strategy)
    assert [8 * number for number in by_tokens.elements.values()] == [39104, 39104, 147456]
