"""An exported swarm's model: bits, sizes and tokenizer come back, and nothing else is written over."""

import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from apps.common.flags.paths import ROTARY_TYPE
from apps.common.lm.huggingface.rotary import export_rotary, read_rotary
from apps.common.lm.huggingface.write import export
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig, cut_for
from pipelined.api.data.tokens.tokenizer import ByteTokenizer, find_tokenizer
from pipelined.errors import UsageError

PLAIN = RotaryConfig(layers=4, d_model=16, heads=2, vocab=256, positions=32, dropout=0.0, shared=2)
SQUEEZED = cut_for(replace(PLAIN, squeeze="bottleneck"), 3, 8)[0]


def values(config: RotaryConfig) -> dict[str, torch.Tensor]:
    model = RotaryLM(config)
    return {
        name: p.detach() for name, p in model.build(range(model.layers), torch.float32, "cpu", 5).named_parameters()
    }


@pytest.mark.parametrize("config", [PLAIN, SQUEEZED], ids=["plain", "squeezed"])
def test_what_is_exported_comes_back_to_the_bit(config: RotaryConfig, tmp_path: Path):
    tensors = values(config)
    export_rotary(tmp_path, tensors, config, ByteTokenizer())
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name].view(torch.int32), value.view(torch.int32)) for name, value in tensors.items())
    assert read_rotary(tmp_path) == config
    assert find_tokenizer(str(tmp_path), ()).to_json() == ByteTokenizer().to_json()


def test_each_tensor_is_on_disk_before_the_next_one_comes(tmp_path: Path):
    before = list[weakref.ref[torch.Tensor]]()

    def one_by_one():
        for name, parameter in values(PLAIN).items():
            assert all(each() is None for each in before), f"a tensor before {name} is still held"
            tensor = parameter.clone()
            before.append(weakref.ref(tensor))
            yield name, tensor
            del tensor

    export_rotary(tmp_path, one_by_one(), PLAIN, ByteTokenizer())
    assert len(before) == len(values(PLAIN))


def test_config_json_says_what_it_is(tmp_path: Path):
    export_rotary(tmp_path, values(PLAIN), PLAIN, ByteTokenizer())
    about = json.loads((tmp_path / "config.json").read_text())
    assert not {"dropout", "deviation"} & about.keys(), "that is how it was trained"
    assert (about["model_type"], about["rope_theta"], about["dtype"]) == (ROTARY_TYPE, 10000.0, "float32")


def test_an_earlier_export_is_written_over_and_nothing_else(tmp_path: Path):
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    export_rotary(one, values(PLAIN), PLAIN, ByteTokenizer())
    export_rotary(one, values(SQUEEZED), SQUEEZED, ByteTokenizer())
    assert read_rotary(one) == SQUEEZED
    gpt2 = GPT2(ModelConfig(layers=1, d_model=8, heads=2, vocab=256, positions=8))
    export(other, gpt2.build(range(3), torch.float32, "cpu", 1).named_parameters(), gpt2.config, ByteTokenizer())
    third.mkdir()
    (third / "notes").write_text("mine")
    for place in (other, third, third / "notes"):
        with pytest.raises(UsageError, match="give --export a"):
            export_rotary(place, values(PLAIN), PLAIN, ByteTokenizer())


def test_what_is_not_whole_is_not_written(tmp_path: Path):
    tensors = values(PLAIN)
    tensors.pop("lm_head.weight")
    with pytest.raises(ValueError, match="first lm_head"):
        export_rotary(tmp_path / "new", tensors, PLAIN, ByteTokenizer())
    assert not any((tmp_path / "new").iterdir())
