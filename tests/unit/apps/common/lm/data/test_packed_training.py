"""Training on packed chats: a step over all rows has the loss of a plain loop over what the assistant says."""

import json

import pytest
import torch
from torch.nn import functional

from apps.bert.__main__ import BertFlags as Bert
from apps.common.lm.data.text import read_text
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.rows.program import main as rows
from apps.gpt2.__main__ import main as gpt2
from apps.llama.__main__ import LlamaFlags as Llama
from apps.swarm.data import feed_of
from pipelined.__main__ import main as pipelined
from pipelined.errors import UsageError
from tests.unit.apps.common.lm.data.chats import CHATS

T, STEPS = 40, 3
RATE = "--lr 1e-2 --warmup 0 --lr-schedule constant --clip 0"
SIZES = f"--layers 1 --seq {T} --steps {STEPS} --sample 0 --dtype float64 {RATE}"


@pytest.fixture
def chats(tmp_path):
    """Packed chats, each in a row of its own, and the same as what a plain loop takes: ids, and what counts."""
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    flags = f"--out {tmp_path / 'out'} --tokenizer bytes --chat --pack {T} {tmp_path / 'chats.jsonl'}"
    assert pipelined(["tokens", *flags.split()]) == 0
    return tmp_path / "out"


def plain_pieces():
    """(inputs, targets) of each piece of each chat, written out again by hand."""
    for chat in CHATS:
        ids, counted = [], []
        for number, message in enumerate(chat):
            opening = ("\n" if number else "") + f"<|im_start|>{message['role']}\n"
            closing = f"{message['content']}<|im_end|>"
            for text, counts in ((opening, False), (closing, message["role"] == "assistant")):
                ids += text.encode()
                counted += [counts] * len(text.encode())
        for start in range(0, len(ids) - 1, T):
            yield torch.tensor(ids[start : start + T + 1]), torch.tensor(counted[start : start + T + 1])


def losses(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["loss"] for row in found], found[-1]["eval_loss"]


@pytest.mark.parametrize(
    "arrangement", ["--depth 1", "--depth 2 --microbatch 1", "--depth 2 --schedule zb_h1 --microbatch 1"]
)
def test_gpt2_learns_from_what_the_assistant_says_as_a_plain_loop(chats, tmp_path, arrangement):
    """Every row of the file is in every step, so their order does not matter."""
    count = json.loads((chats / "index.json").read_text())["tokens"] // (T + 1)
    data = f"--batch {count} --data {chats} --val-data {chats}"
    flags = f"{SIZES} --d-model 16 --heads 2 --weight-decay 0 {arrangement} {data}"
    assert gpt2([*flags.split(), "--metrics", str(tmp_path / "metrics")]) == 0
    got, evaluated = losses(tmp_path / "metrics")
    config = ModelConfig(1, 16, 2, 256, positions=256, dropout=0.0, deviation=0.06)
    model = GPT2(config).build(range(3), torch.float64, "cpu", 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    tokens = torch.from_file(str(chats / "tokens-00000.bin"), size=count * (T + 1), dtype=torch.uint16).long()
    masks = torch.from_file(str(chats / "mask-00000.bin"), size=count * (T + 1), dtype=torch.uint8).bool()
    ids, counted = tokens.view(count, T + 1), masks.view(count, T + 1)[:, 1:]

    def loss():
        each = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return (each * counted.flatten()).sum() / counted.sum()

    wanted = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step = loss()
        step.backward()
        optimizer.step()
        wanted.append(step.item())
    assert got == pytest.approx(wanted, abs=1e-9) and len(set(got)) == STEPS
    assert evaluated == pytest.approx(loss().item(), abs=1e-9)
    assert int(counted.sum()) == sum(int(counts[1:].sum()) for _, counts in plain_pieces())


def test_a_row_of_layers_counts_the_same_at_every_cut_of_the_batch(chats, tmp_path):
    count = json.loads((chats / "index.json").read_text())["tokens"] // (T + 1)
    found = []
    for name, cut in (("whole", f"--depth 1 --microbatch {count}"), ("cut", "--depth 2 --microbatch 1")):
        flags = f"{SIZES} {cut} --batch {count} --data {chats} --val-data {chats} --metrics {tmp_path / name}"
        assert rows("apps.llama", Llama(), flags.split()) == 0
        found.append(losses(tmp_path / name))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-9)


@pytest.mark.parametrize(
    ("program", "flags", "fact"),
    [
        (gpt2, "--seq 39", "the documents are packed for other sequences (--seq 39, packed: 40); take --seq 40"),
        (gpt2, f"--seq {T} --tensor 2", "(--tensor 2); take a schedule with a flush and no --tensor"),
        (gpt2, f"--seq {T} --schedule async_1f1b --depth 2 --clip 0", "(--schedule async_1f1b, which updates earlier)"),
        (lambda words: rows("apps.llama", Llama(), words), f"--seq {T} --tensor 2", "(--tensor 2); take a schedule"),
        (gpt2, f"--seq {T} --batch 500 --microbatches 500", "lower --batch\n"),
        (lambda words: rows("apps.bert", Bert(), words), f"--seq {T}", "BERT masks tokens of running text"),
    ],
)
def test_what_packed_documents_do_not_go_with_is_refused(chats, capsys, program, flags, fact):
    assert program(["--batch", "2", *flags.split(), "--data", str(chats), "--steps", "1"]) == 2
    assert fact in capsys.readouterr().err


def test_a_swarm_refuses_packed_documents(chats):
    with pytest.raises(UsageError, match=r"a swarm counts every token.*without --pack"):
        feed_of(read_text([chats]), 1, T, 1, 0)
