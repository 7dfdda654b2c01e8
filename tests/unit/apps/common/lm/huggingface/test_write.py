"""Hugging Face directories: the same logits both ways, and what is refused."""

import errno
import json
import os
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from apps.common.lm.huggingface import write
from apps.common.lm.huggingface.write import export, read_sizes, read_tensors
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig, shapes
from pipelined.api.data.tokens.tokenizer import ByteTokenizer
from pipelined.errors import UsageError

TIED = ModelConfig(layers=3, d_model=48, heads=4, vocab=256, positions=32)
UNTIED = ModelConfig(layers=3, d_model=48, heads=4, vocab=256, positions=32, tied=False, deviation=0.05)
IDS = torch.randint(0, 256, (2, 20), generator=torch.Generator().manual_seed(0))
both = pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])


def build(config: ModelConfig) -> torch.nn.Module:
    part = GPT2(config).build(range(config.layers + 2), torch.float32, "cpu", 1)
    for parameter in part.parameters():  # away from the zeros and ones that hide mistakes
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return part


def theirs(config: ModelConfig) -> torch.nn.Module:
    import transformers  # not at collection: it takes longer than torch

    torch.manual_seed(0)
    sizes = {
        "n_layer": config.layers,
        "n_embd": config.d_model,
        "n_head": config.heads,
        "n_positions": config.positions,
    }
    ends = {"bos_token_id": None, "eos_token_id": None, "initializer_range": config.deviation}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=config.vocab, tie_word_embeddings=config.tied, **sizes, **ends)
    ).eval()


def load(directory: Path) -> tuple[ModelConfig, torch.nn.Module]:
    config = read_sizes(directory)
    part = GPT2(config).build(range(config.layers + 2), torch.float32, "cpu", None)
    part.load_state_dict(read_tensors(directory, shapes(config)))
    return config, part


@both
@pytest.mark.parametrize("shard_bytes", [1 << 30, 50_000], ids=["whole", "sharded"])
def test_what_is_exported_gives_transformers_the_same_logits(config, shard_bytes, tmp_path, monkeypatch):
    import transformers  # not at collection: it takes longer than torch

    monkeypatch.setattr(write, "SHARD_BYTES", shard_bytes)
    part = build(config)
    export(tmp_path, part.named_parameters(), config, ByteTokenizer())
    assert (tmp_path / "model.safetensors").exists() == (shard_bytes > 50_000)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, part(IDS))
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in part.parameters())


@both
@pytest.mark.parametrize("shard", ["1GB", "50KB"], ids=["whole", "sharded"])
def test_what_transformers_saves_gives_the_same_logits_here(config: ModelConfig, shard: str, tmp_path: Path):
    model = theirs(config)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    found, part = load(tmp_path)
    assert found == config
    with torch.no_grad():
        assert torch.equal(part(IDS), model(IDS).logits)


def test_names_without_the_prefix_are_found(tmp_path: Path):
    part = build(TIED)
    export(tmp_path, part.named_parameters(), TIED, None)
    stored = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    save_file({**bare, "h.0.attn.bias": torch.ones(1, 1, 32, 32)}, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path)[1](IDS), part(IDS))


def test_a_head_unties_only_where_it_differs(tmp_path: Path):
    import transformers  # not at collection: it takes longer than torch

    export(tmp_path, build(TIED).named_parameters(), TIED, None)
    stored = load_file(tmp_path / "model.safetensors")
    head = stored["transformer.wte.weight"].clone()
    save_file({**stored, "lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    assert read_sizes(tmp_path).tied
    save_file({**stored, "lm_head.weight": head + 1}, tmp_path / "model.safetensors", {"format": "pt"})
    config, part = load(tmp_path)
    assert not config.tied
    with torch.no_grad():
        assert torch.equal(part(IDS), transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()(IDS).logits)


def test_only_the_tensors_requested_are_read(tmp_path: Path):
    export(tmp_path, build(TIED).named_parameters(), TIED, None)
    assert list(read_tensors(tmp_path, ["transformer.ln_f.bias"])) == ["transformer.ln_f.bias"]
    with pytest.raises(UsageError, match=r"holds no tensor transformer\.h\.3"):
        read_tensors(tmp_path, ["transformer.h.3.ln_1.bias"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, r"another architecture \(model_type: llama, needed: gpt2\)"),
        ({"model_type": None}, r"another architecture"),
        ({"activation_function": "relu"}, r"activation_function: relu, needed: gelu_new"),
        ({"n_inner": 100}, r"n_inner: 100, needed: 192"),
        ({"n_layer": None}, r"lacks n_layer"),
        ({"n_layer": 4}, r"holds no tensor transformer.h.3.ln_1.weight"),
        ({"n_embd": 96}, r"at odds with its config.json \(transformer.wte.weight: \(256, 48\), expected: \(256, 96\)"),
        ({"attn_pdrop": None}, r"another type \(attn_pdrop: None\)"),
        ({"n_embd": {}}, r"another type \(n_embd: \{\}\)"),
        ({"attn_pdrop": 0.5}, r"dropouts of config.json differ"),
    ],
)
def test_another_architecture_or_a_directory_at_odds_is_refused(change: dict, message: str, tmp_path: Path):
    export(tmp_path, build(TIED).named_parameters(), TIED, None)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UsageError, match=message):
        read_sizes(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kept", [None, 0, 1000], ids=["missing", "empty", "cut short"])
def test_missing_or_broken_files_are_refused_by_name(name: str, kept: int | None, tmp_path: Path):
    export(tmp_path, build(TIED).named_parameters(), TIED, None)
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink()
    if kept is not None:
        file.write_bytes(content[: min(kept, len(content) - 9)])
    with pytest.raises(UsageError, match=f"cannot read .*{name}"):
        read_sizes(tmp_path)


def test_nothing_else_is_written_over(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"something else than a GPT-2 \(entries: 1\)"):
        export(tmp_path, build(TIED).named_parameters(), TIED, None)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_each_tensor_is_on_disk_before_the_next_one_comes(tmp_path: Path):
    before = list[weakref.ref[torch.Tensor]]()

    def one_by_one():
        for name, parameter in build(TIED).named_parameters():
            assert all(each() is None for each in before)
            tensor = parameter.detach().clone()
            before.append(weakref.ref(tensor))
            yield name, tensor
            del tensor

    export(tmp_path, one_by_one(), TIED, None)
    assert len(before) == len(shapes(TIED))


def test_a_tensor_that_is_given_twice_is_refused(tmp_path: Path):
    pairs = [*build(TIED).named_parameters()]
    with pytest.raises(ValueError, match=r"tensor transformer.wte.weight was given twice"):
        export(tmp_path, [*pairs, pairs[0]], TIED, None)


def test_a_second_export_replaces_the_first_whole(tmp_path: Path, monkeypatch):
    with monkeypatch.context() as small:
        small.setattr(write, "SHARD_BYTES", 50_000)
        export(tmp_path, build(TIED).named_parameters(), TIED, None)
    export(tmp_path, build(UNTIED).named_parameters(), UNTIED, None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert load(tmp_path)[0] == UNTIED


def test_an_incomplete_export_leaves_the_first_as_it_was(tmp_path: Path):
    export(tmp_path, build(TIED).named_parameters(), TIED, None)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    some = dict(build(TIED).named_parameters())
    del some["transformer.h.1.ln_2.bias"]
    with pytest.raises(ValueError, match=r"1 of 40 differ, first transformer.h.1.ln_2.bias: None, expected \(48,\)"):
        export(tmp_path, some, TIED, None)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_where_there_is_no_room_what_lay_there_stays(tmp_path, monkeypatch):
    part = build(TIED)
    export(tmp_path, part.named_parameters(), TIED, None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*of):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("apps.common.lm.huggingface.write._write_json", full)
    with pytest.raises(UsageError, match=r"cannot write .*No space left on device\); make room there"):
        export(tmp_path, build(TIED).named_parameters(), TIED, None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
