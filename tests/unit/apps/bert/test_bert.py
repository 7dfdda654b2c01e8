"""The BERT program: trained in a pipeline on masked tokens as by a plain loop, with dropout, and written back."""

import json

import pytest
import torch
from torch import nn

import pipelined as pp
from apps.bert.__main__ import BertFlags
from apps.common.lm.data.batches import Batches
from apps.common.lm.data.masking import Masking
from apps.common.lm.data.text import read_text
from apps.common.lm.huggingface.bert import each_bert_tensor, read_bert
from apps.common.lm.models.bert import builders
from apps.common.lm.models.bert_presets import BertConfig, shapes
from apps.common.rows.program import main
from tests.launching import ROOT
from tests.unit.apps.plain import PlainOptimizer

STEPS, PARTS, ROWS, SEQUENCE = 4, 4, 2, 16
SIZES = BertConfig(2, 16, 2, 32, 257, positions=32, deviation=0.3)


def row_of(directory):
    """The layers of a directory as plain torch in float64, by name."""
    config = read_bert(directory)
    row = nn.ModuleDict({name: build() for name, build in builders(config).items()})
    row.load_state_dict(dict(each_bert_tensor(directory, shapes(config))), strict=False)
    row.decoder.word_embeddings.weight = row.embeddings.word_embeddings.weight
    return row.double()


def plain(row):
    """The losses of a loop of plain torch; before each layer it seeds torch's generator, as the runtime does."""
    optimizer = PlainOptimizer(row)
    batches = Batches(read_text([ROOT / "LICENSE"], "bytes").train, SEQUENCE, ROWS, PARTS, 0)
    losses, masking = [], Masking(0, 256, 256)
    for step in range(STEPS):
        means = []
        for part in range(PARTS):
            first = (step * PARTS + part) * ROWS
            x, targets = map(torch.from_numpy, masking.mask_tokens(batches.rows(step, part)[0], "mask", first))
            for name, layer in row.items():
                torch.manual_seed(pp.layer_seed(0, step, part, name))
                x = layer(x)
            loss = nn.functional.cross_entropy(x.flatten(0, 1), targets.flatten())
            (loss / PARTS).backward()
            means.append(loss.item())
        optimizer.step()
        losses.append(sum(means) / PARTS)
    return losses


def test_masked_tokens_in_a_chimera_of_four_ranks_are_learnt_as_by_a_plain_loop(tmp_path, capsys, monkeypatch):
    import transformers  # not at collection: it takes longer than torch

    given, out = tmp_path / "given", tmp_path / "out"
    flags = f"--tokenizer bytes --data {ROOT / 'LICENSE'} --depth 4 --batch {ROWS * PARTS} --seq {SEQUENCE}"
    monkeypatch.setitem(BertFlags.task.__globals__["BERT_PRESETS"], "small", SIZES)
    assert main("apps.bert", BertFlags(), f"{flags} --preset small --steps 0 --export {given}".split()) == 0
    more = f"--dtype float64 --init {given} --steps {STEPS} --export {out} --metrics {tmp_path / 'metrics'}"
    assert main("apps.bert", BertFlags(), f"{flags} {more}".split()) == 0
    assert "nats a masked token (unigram" in capsys.readouterr().out
    row = row_of(given)
    found = [json.loads(line)["loss"] for line in (tmp_path / "metrics").read_text().splitlines()]
    assert found == pytest.approx(plain(row), abs=1e-10)
    state = dict(each_bert_tensor(out, shapes(read_bert(out))))
    assert max((row.state_dict()[name] - value).abs().max() for name, value in state.items()) < 1e-10
    ids = torch.arange(32).view(2, 16) * 7
    back = transformers.BertForMaskedLM.from_pretrained(out, dtype=torch.float64).eval()
    x = ids
    for layer in row.eval().values():
        x = layer(x)
    with torch.no_grad():
        assert (back(ids).logits - x).abs().max() < 1e-5


def test_without_a_mask_of_its_own_a_tokenizer_needs_one_symbol_more(capsys):
    flags = f"--tokenizer bytes --data {ROOT / 'LICENSE'} --vocab 256 --steps 1"
    assert main("apps.bert", BertFlags(), flags.split()) == 2
    assert "(tokenizer: 257, model: 256); take --vocab 257" in capsys.readouterr().err
