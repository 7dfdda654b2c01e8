"""From texts to a trained model: tokens are written once, and a run on them resumes at the very sequence."""

import json

from apps.gpt2 import __main__ as gpt2
from pipelined.__main__ import main as pipelined
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from tests.launching import ROOT

SIZES = "--depth 2 --layers 1 --d-model 8 --heads 1 --seq 8 --batch 6 --microbatch 3 --sample 0 --eval-windows 4"


def train(tmp_path, name, *flags):
    """Train on the tokens; the losses of the steps and those of evaluations."""
    metrics = tmp_path / f"{name}.jsonl"
    assert gpt2.main([*SIZES.split(), "--metrics", str(metrics), *map(str, flags)]) == 0
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(row["step"], row["loss"], row.get("eval_loss")) for row in rows]


def test_a_run_on_tokens_resumes_at_the_very_sequence_and_has_the_losses_of_one_that_was_not_stopped(tmp_path, capsys):
    lines = (ROOT / "LICENSE").read_text().splitlines()
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    written = ["--out", tmp_path / "tokens", "--tokenizer", "bytes", "--shard", 1000, tmp_path / "texts.jsonl"]
    assert pipelined(["tokens", *map(str, written)]) == 0
    data = "--data", tmp_path / "tokens", "--eval-every", 2
    straight = train(tmp_path, "straight", *data, "--steps", 4)
    saved = "--checkpoint", tmp_path / "saved"
    stopped = train(tmp_path, "stopped", *data, *saved, "--steps", 2)
    resumed = train(tmp_path, "resumed", *saved, "--resume", "auto", "--steps", 4)
    assert len({loss for _, loss, _ in straight}) == 4
    assert [row[:2] for row in stopped + resumed] == [row[:2] for row in straight]
    assert open_checkpoint(checkpoint.latest(tmp_path / "saved")).meta.config["data"] == [str(tmp_path / "tokens")]
    assert "its own (256 symbols" in capsys.readouterr().out
