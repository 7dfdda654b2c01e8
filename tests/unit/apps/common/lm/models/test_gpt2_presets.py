"""Sizes: known parameter counts, and refusal of sizes that cannot work."""

import subprocess
import sys
from math import prod

import pytest

from apps.common.flags.presets import find_preset
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig, layer_shapes, parameters
from pipelined.errors import UsageError

TINY = PRESETS["tiny"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("chimera", 1_389_327_360),
        ("autoddl-8", 6_871_138_304),
        ("autoddl-20", 16_536_092_672),
        ("autoddl-44", 35_866_001_408),
        ("autoddl-small", 355_788_800),
        ("autoddl-large", 5_852_553_216),
        ("autoddl-deep", 7_463_591_936),
    ],
)
def test_the_published_models_have_their_published_parameters(name: str, count: int):
    assert parameters(find_preset(name, PRESETS)) == count


def test_a_tied_embedding_counts_once_in_the_model_and_for_each_layer_that_holds_it():
    layers = [sum(map(prod, layer.values())) for layer in layer_shapes(TINY)]
    assert sum(layers) - parameters(TINY) == TINY.vocab * TINY.d_model
    assert len(layers) == TINY.layers + 2


def test_only_the_tiny_preset_starts_from_other_values_than_published():
    assert [name for name, config in PRESETS.items() if config.deviation != 0.02] == ["tiny"]


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(UsageError, match="tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl, chimera, autoddl-8"):
        find_preset("gpt3", PRESETS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, r"layers must be at least 1 \(got: 0\)"),
        ({"d_model": 100, "heads": 8}, r"d_model: 100, heads: 8\); give --heads 5, or"),
        ({"deviation": 0.0}, r"deviation must be positive \(got: 0.0\)"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\) \(got: 1.0\)"),
    ],
)
def test_sizes_that_cannot_work_are_refused_with_the_numbers(change: dict[str, float], message: str):
    with pytest.raises(UsageError, match=message):
        ModelConfig(**{"layers": 2, "d_model": 32, "heads": 2, "vocab": 256, **change})


def test_a_sequence_longer_than_the_positions_is_refused():
    TINY.check_sequence(TINY.positions)
    with pytest.raises(UsageError, match=f"sequence: {TINY.positions + 1}, positions: {TINY.positions}"):
        TINY.check_sequence(TINY.positions + 1)


def test_a_vocabulary_larger_than_the_models_is_refused():
    TINY.check_vocabulary(TINY.vocab)
    with pytest.raises(UsageError, match=rf"tokenizer: 50257, model: {TINY.vocab}\); take --vocab 50257"):
        TINY.check_vocabulary(50257)


def test_sizes_text_and_batches_are_read_without_torch():
    data = "common.lm.data.corpus common.lm.data.batches common.lm.data.ngram swarm.data"
    names = f"common.lm.models.gpt2_presets common.lm.huggingface.write {data}"
    code = f"import sys, {', '.join('apps.' + name for name in names.split())}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
