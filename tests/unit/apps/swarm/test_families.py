"""GPT-2 among what a swarm can train: found by its presets' names, tied where that can be, refused what it has not."""

from dataclasses import replace

import pytest
import torch

from apps.common.lm.models.gpt2 import EMBEDDING, GPT2, HEAD, UntiedGPT2
from apps.common.lm.models.gpt2_presets import PRESETS
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import ROTARY_PRESETS
from apps.swarm.config import SwarmTask, TrainingConfig
from apps.swarm.families import GPT2_PRESETS, gpt2_name, is_untied, sizes_of
from apps.swarm.training import model_and_cut, training_of
from pipelined.errors import UsageError

SMALL = TrainingConfig(preset="gpt2-tiny", layers=2, d_model=16, heads=2, seq=8, stages=2)


def whole(model: GPT2, seed: int = 3) -> dict[str, torch.Tensor]:
    return dict(model.build(range(model.layers), torch.float64, "cpu", seed).named_parameters())


def test_both_families_have_names_of_their_own():
    assert not GPT2_PRESETS.keys() & ROTARY_PRESETS.keys()
    assert {gpt2_name(name): config for name, config in PRESETS.items()} == GPT2_PRESETS
    assert isinstance(model_and_cut(SwarmTask(replace(SMALL, preset="tiny"), 50, "", 0))[0], RotaryLM)


def test_sizes_are_the_presets_unless_they_are_given():
    sizes = sizes_of(replace(SMALL, dropout=0.2, positions=9), 50)
    assert (sizes.layers, sizes.d_model, sizes.heads, sizes.vocab) == (2, 16, 2, 50)
    assert (sizes.dropout, sizes.positions, sizes.tied, sizes.deviation) == (0.2, 9, False, 0.06)


def test_a_gpt2_cut_loose_begins_with_what_the_tied_one_computes():
    cut_loose, tied = (
        model_and_cut(SwarmTask(each, 50, "", 0))[0] for each in (SMALL, replace(SMALL, stages=1, tied=True))
    )
    mine, theirs = whole(cut_loose), whole(tied)
    assert mine.keys() - theirs.keys() == {HEAD}
    assert torch.equal(mine[HEAD], mine[EMBEDDING]) and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_one_that_is_untied_as_published_keeps_its_own_head():
    told = SwarmTask(replace(SMALL, preset="gpt2-chimera"), 50, "", 0)
    assert not is_untied(told.settings) and type(model_and_cut(told)[0]) is GPT2
    parameters = whole(model_and_cut(told)[0])
    assert not torch.equal(parameters[HEAD], parameters[EMBEDDING])


def test_parts_hold_the_values_of_the_whole():
    model, cut = model_and_cut(SwarmTask(SMALL, 50, "", 0))
    assert type(model) is UntiedGPT2
    parts = {n: p for layers in cut for n, p in model.build(layers, torch.float64, "cpu", 3).named_parameters()}
    assert all(torch.equal(parts[name], value) for name, value in whole(model).items())


@pytest.mark.parametrize(
    "change, told",
    [
        ({"tied": True}, "would share transformer.wte.weight"),
        ({"shared": 2}, "GPT-2 shares no layers"),
        ({"squeeze": "maxout"}, "squeezes nothing"),
        ({"seq": 257}, "sequence: 257, positions: 256"),
        ({"stages": 5}, "stages: 5, layers: 4"),
        ({"preset": "gpt2-huge"}, "choose one of tiny, .*gpt2-tiny, gpt2"),
        ({"preset": "tiny", "tied": True}, "leave it untied"),
    ],
)
def test_impossible_settings_are_refused(change, told):
    with pytest.raises(UsageError, match=told):
        training_of(SwarmTask(replace(SMALL, **change), 50, "", 0))
