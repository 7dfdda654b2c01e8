"""The Llama program: a Hugging Face directory is fine-tuned in a pipeline as by a plain loop, and written back."""

import json
import re

import pytest
import torch
from torch import nn

from apps.common.lm.huggingface.llama import each_llama_tensor, read_llama
from apps.common.lm.models.llama import builders
from apps.common.lm.models.llama_presets import shapes
from apps.common.rows.job import resolve
from apps.common.rows.program import main
from apps.llama.__main__ import LlamaFlags
from pipelined.errors import UsageError
from tests.launching import ROOT
from tests.unit.apps.plain import losses_of_language

STEPS, ROWS, SEQUENCE = 20, 8, 16


def saved(directory):
    """A small Llama with random weights."""
    import transformers  # not at collection: it takes longer than torch

    torch.manual_seed(2)
    sizes = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=True)).save_pretrained(
        directory
    )


def plain(directory):
    """The losses and the row of a loop of plain torch in float64: AdamW, the program's rates, and its sequences."""
    config = read_llama(directory)
    row = nn.Sequential()
    for name, build in builders(config).items():
        row.add_module(name, build())
    row.load_state_dict(dict(each_llama_tensor(directory, shapes(config))), strict=False)
    row.lm_head.weight = row.embed_tokens.weight
    row.double()
    return losses_of_language(row, STEPS, SEQUENCE, ROWS), row


def test_twenty_steps_in_a_chimera_of_four_ranks_are_those_of_a_plain_loop(tmp_path, capsys):
    import transformers  # not at collection: it takes longer than torch

    saved(tmp_path / "given")
    flags = (
        f"--init {tmp_path / 'given'} --export {tmp_path / 'out'} --data {ROOT / 'LICENSE'} --depth 4 --steps {STEPS}"
    )
    more = (
        f"--tokenizer bytes --batch {ROWS} --seq {SEQUENCE} --dtype float64 --sample 3 --metrics {tmp_path / 'metrics'}"
    )
    assert main("apps.llama", LlamaFlags(), f"{flags} {more}".split()) == 0
    said = capsys.readouterr().out
    assert "plan: chimera, depth 4" in said and "over the bigram" in said and "sample:\nROMEO" in said
    losses, row = plain(tmp_path / "given")
    found = [json.loads(line)["loss"] for line in (tmp_path / "metrics").read_text().splitlines()]
    assert found == pytest.approx(losses, abs=1e-10)
    ids = torch.arange(32).view(2, 16) * 7
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64).eval()
    with torch.no_grad():
        assert (back(ids).logits - row(ids)).abs().max() < 1e-5
    state = dict(each_llama_tensor(tmp_path / "out", shapes(read_llama(tmp_path / "out"))))
    assert max((row.state_dict()[name] - value).abs().max() for name, value in state.items()) < 1e-10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "llama9"}, "no preset is called 'llama9'; .* choose one of tiny, smollm2"),
        ({"seq": 300}, r"a sequence does not fit the model's positions \(--seq 300, positions: 256\)"),
        ({"prompt": ""}, "a sample needs at least one character"),
        ({"depth": 8}, r"more stages than layers \(stages: 8, layers: 7"),
    ],
)
def test_impossible_settings_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        resolve(LlamaFlags(**given), None)


def test_flags_repeat_the_sizes_of_a_directory_but_do_not_change_them(tmp_path):
    saved(tmp_path)
    sizes = resolve(LlamaFlags(init=tmp_path), None).task.model
    assert resolve(LlamaFlags(init=tmp_path, layers=3, vocab=256), None).task.model == sizes
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path} determines the sizes (--layers 2, there: 3)")):
        resolve(LlamaFlags(init=tmp_path, layers=2), None)


def test_what_print_config_writes_of_a_directory_is_read_again(tmp_path, capsys):
    saved(tmp_path / "given")
    assert main("apps.llama", LlamaFlags(), ["--init", str(tmp_path / "given"), "--print-config"]) == 0
    (tmp_path / "run.json").write_text(capsys.readouterr().out)
    assert main("apps.llama", LlamaFlags(), ["--config", str(tmp_path / "run.json"), "--print-config"]) == 0
