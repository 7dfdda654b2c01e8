"""The model of SWARM in a pipeline: what a swarm exported is trained as by a plain loop, and written back."""

import json

import pytest
import torch

from apps.common.lm.huggingface.rotary import each_rotary_tensor, export_rotary, read_rotary
from apps.common.lm.models.rotary import RotaryLM, builders
from apps.common.lm.models.rotary_presets import ROTARY_PRESETS, RotaryConfig, cut_for, shapes
from apps.common.rows.job import resolve
from apps.llama.__main__ import PRESETS, LlamaFlags, start
from pipelined.api.data.tokens.tokenizer import ByteTokenizer
from pipelined.errors import UsageError
from tests.launching import ROOT
from tests.unit.apps.plain import losses_of_language

STEPS, ROWS, SEQUENCE = 8, 8, 16
SIZES = RotaryConfig(4, 16, 2, 256, 32, dropout=0.0, shared=2, squeeze="maxout")
CONFIG = cut_for(SIZES, 3, SEQUENCE)[0]
MODEL = RotaryLM(CONFIG)


def whole(seed):
    return MODEL.build(range(MODEL.layers), torch.float32, "cpu", seed)


def exported(directory, seed=7):
    """Write the initial values of a swarm of this seed as if it had exported them."""
    export_rotary(directory, dict(whole(seed).named_parameters()), CONFIG, ByteTokenizer())


def test_an_export_of_a_swarm_is_trained_in_a_chimera_of_four_ranks_as_by_a_plain_loop(tmp_path, capsys):
    exported(tmp_path / "given")
    flags = (
        f"--init {tmp_path / 'given'} --export {tmp_path / 'out'} --data {ROOT / 'LICENSE'} --depth 4 --steps {STEPS} "
        f"--batch {ROWS} --seq {SEQUENCE} --dtype float64 --sample 3 --metrics {tmp_path / 'metrics'}"
    )
    assert start(flags.split()) == 0
    said = capsys.readouterr().out
    assert "model: swarm_rotary" in said and "plan: chimera, depth 4" in said and "sample:\nROMEO" in said
    model = whole(7).double()
    losses = losses_of_language(model, STEPS, SEQUENCE, ROWS)
    found = [json.loads(line)["loss"] for line in (tmp_path / "metrics").read_text().splitlines()]
    assert found == pytest.approx(losses, abs=1e-10)
    assert read_rotary(tmp_path / "out") == read_rotary(tmp_path / "given") == CONFIG
    back = dict(each_rotary_tensor(tmp_path / "out", shapes(CONFIG)))
    assert max((back[name] - value).abs().max() for name, value in model.named_parameters()) < 1e-10
    assert "lm_head.weight" in back


def test_the_layers_begin_as_those_of_a_swarm_of_the_same_seed():
    expected = dict(whole(7).named_parameters())
    for layer, build in builders(CONFIG, 7).items():
        for name, value in build().named_parameters():
            assert torch.equal(value, expected.pop(name)), f"{layer}.{name}"
    assert not expected


def test_every_preset_of_a_swarm_is_one_here():
    for name, config in ROTARY_PRESETS.items():
        task = resolve(LlamaFlags(preset=f"swarm-{name}", vocab=config.vocab), None).task
        assert (PRESETS[f"swarm-{name}"], task.model, task.depth) == (config, config, config.groups + 2)


def test_a_directory_that_is_at_odds_is_refused(tmp_path):
    exported(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"rope_theta": 500.0}, "rope_theta: 500.0, needed: 10000.0"),
        ({"layers": None}, "lacks layers"),
        ({"narrow": "2"}, "values of another type .narrow: '2'"),
        ({"d_model": 32}, r"transformer.wte.weight: \(256, 16\), expected: \(256, 32\)"),
        ({"shared": 1}, "holds no tensor transformer.h.2"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(about | change))
        with pytest.raises(UsageError, match=message):
            read_rotary(tmp_path)
