"""GPT-2 as multiplications: on one rank it holds what the trainer holds, and moves nothing."""

from dataclasses import replace
from math import prod

import pytest

from apps.common.lm.models.gpt2_presets import PRESETS, shapes
from apps.gpt2.planning.memory import activation_bytes
from apps.gpt2.planning.operators import chain
from benchmarks.harness.bound import state_bytes
from collectives import Links
from pipelined.sharding.factors import Factors
from pipelined.sharding.search.build_problem import build_problem
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.options import Option
from pipelined.sharding.search.pricing import PricedChain
from pipelined.sharding.search.report import ShardRequest, find_sharding
from pipelined.sharding.search.strategy import price

TINY = PRESETS["tiny"]
UNTIED = replace(TINY, tied=False)


def found(config, ranks, microbatches=1, **how):
    priced_chain = PricedChain(
        chain(config, 8, 32, microbatches), (ranks,), Network(Links(0, 1.0, 0)), microbatches, True
    )
    return find_sharding(ShardRequest(priced_chain, **how))


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_one_rank_moves_nothing_and_holds_the_state_and_the_activations(config):
    counts = 4 * len(shapes(config))  # AdamW's count of updates of each parameter
    layers = range(config.layers + 2)
    for microbatches in (1, 4):
        best = found(config, 1, microbatches).best
        held = state_bytes(config, [layers]) + activation_bytes(config, layers, 8 // microbatches, 32)
        assert best.memory_bytes == held - counts and set(best.elements.values()) == {0}


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_data_parallelism_sums_every_matrix_once(config):
    matrices = sum(prod(shape) for name, shape in shapes(config).items() if len(shape) == 2 and "wpe" not in name)
    data = found(config, 4).baselines["data"]
    assert data.elements == {"forward": 0, "backward": 0, "update": pytest.approx(2 * 3 / 4 * matrices)}


def test_an_input_that_is_kept_is_held_and_one_that_is_not_is_sent_again():
    priced_chain = PricedChain(chain(TINY, 8, 32, 2), (4,), Network(Links(0, 1.0, 0)), 2, True)
    op, split = priced_chain.chain.operators[0], (Factors(1, 4, 1),)
    kept, anew = Option(split), Option(split, regather_input=True)
    gathered = 3 / 4 * 8 * 32 * TINY.d_model  # of a step; a microbatch has half of it
    assert priced_chain.memory_bytes(op, kept) - priced_chain.memory_bytes(op, anew) == TINY.layers * 4 * gathered / 2
    sent = [sum(ring.elements(group.size) for ring, group in priced_chain.rings(op, option)) for option in (kept, anew)]
    assert sent[1] - sent[0] == gathered


def test_a_tied_head_moves_the_residual_stream_on_both_sides():
    """The stream lies by columns, and embedding and head work by rows."""
    priced_chain = PricedChain(chain(TINY, 8, 32, 1), (4,), Network(Links(0, 1.0, 0)), 1, True)
    rows = [[Option((Factors(1, 4, 1),)), Option((Factors(1, 1, 4),))][place % 2 : place % 2 + 1] for place in range(4)]
    built = build_problem(priced_chain, [*rows, [Option((Factors(4, 1, 1),))]])
    by_columns = tuple(choice.options.index((1,)) if (1,) in choice.options else 0 for choice in built.problem.choices)
    head = price(built, by_columns).rows[-1]
    part = 8 * 32 * TINY.d_model / 4
    norm = 4 * 3 / 4 * 8 * 32
    assert head.elements["forward"] == head.elements["backward"] == 2 * 3 / 4 * part + norm
