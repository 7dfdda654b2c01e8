"""GPT-2 as multiplications: on one rank it holds what the trainer holds, and moves nothing."""

from dataclasses import replace
from math import prod

import pytest

from apps.gpt2.memory import activation_bytes, state_bytes
from apps.gpt2.operators import chain
from apps.lm.models.gpt2_presets import PRESETS, shapes
from collectives import Links
from pipelined.sharding.search.answer import ShardRequest, answer
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.space import Setting

TINY = PRESETS["tiny"]
UNTIED = replace(TINY, tied=False)


def found(config, ranks, microbatches=1, **how):
    setting = Setting(chain(config, 8, 32, microbatches), (ranks,), Network(Links(0, 1.0, 0)), microbatches, True)
    return answer(ShardRequest(setting, **how))


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_one_rank_moves_nothing_and_holds_the_state_and_the_activations(config):
    counts = 4 * len(shapes(config))  # AdamW's count of updates of each parameter
    layers = range(config.layers + 2)
    for microbatches in (1, 4):
        best = found(config, 1, microbatches).best
        held = state_bytes(config, [layers]) + activation_bytes(config, layers, 8 // microbatches, 32)
        assert best.held == held - counts and set(best.elements.values()) == {0}


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
def test_data_parallelism_sums_every_matrix_once(config):
    matrices = sum(prod(shape) for name, shape in shapes(config).items() if len(shape) == 2 and "wpe" not in name)
    data = found(config, 4).baselines["data"]
    assert data.elements == {"forward": 0, "backward": 0, "update": pytest.approx(2 * 3 / 4 * matrices)}
