"""What earlier versions wrote is read: a checkpoint, a trace, a plan, the stages that a swarm saved, and its journal.

The files in `data/` were written at commit cbd7fea, in a directory with `text.txt`, and are never written again:

    FLAGS="--layers 2 --d-model 8 --heads 2 --seq 8 --batch 4 --warmup 2 --data text.txt"
    python -m apps.gpt2 $FLAGS --schedule chimera --depth 2 --microbatches 2 --steps 2 \\
        --checkpoint checkpoint --trace trace.json
    python -m pipelined plan --ranks 2 --global-batch 4 --layers 2 --d-model 8 --heads 2 --seq 8 \\
        --schedule chimera --depth 2 --costs flops=1e10,overhead=1e-4 --out plan.json
    python -m apps.swarm local $FLAGS --microbatch 2 --stages 2 --peers 2 --slots 1 --steps 2 \\
        --rebalance 0 --save-every 1 --checkpoint swarm --journal journal

`losses.json` has the losses of steps 0 and 1, and of steps 2 and 3 as the checkpoint was gone on with at the time;
`trace-told.json` is what `python -m pipelined trace trace.json --json` printed.
"""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from apps.gpt2 import __main__ as gpt2
from apps.swarm import __main__ as swarm
from pipelined.__main__ import main as pipelined_command
from tests.launching import launched, started

DATA = Path(__file__).parent / "data"
CHECKPOINT = DATA / "checkpoint" / "step-00000002"
LOSSES = json.loads((DATA / "losses.json").read_text())
TEXT = "--data", str(DATA / "text.txt"), "--sample", "0"
ARRANGED = "--schedule", "chimera", "--depth", "2", "--microbatches", "2"
SIZES = *"--layers 2 --d-model 8 --heads 2 --seq 8 --batch 4 --warmup 2".split(), *ARRANGED
ROUNDING = 1e-5
"""What another processor may add to a float32 loss."""


def losses_of(folder, *words):
    """Train, and return what the metrics say of each step."""
    file = folder / "metrics.jsonl"
    assert gpt2.main([*map(str, words), *TEXT, "--metrics", str(file)]) == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


def assert_kept(kept, rows):
    """The rows have the losses, norms and evaluations that were kept."""
    named = [{key: row[key] for key in before} for before, row in zip(kept, rows, strict=True)]
    for before, row in zip(kept, named, strict=True):
        assert row == pytest.approx(before, rel=ROUNDING)


def digests(manifest):
    """By tensor name and part its shape, dtype and sha256."""
    shards = json.loads((manifest / "manifest.json").read_text())["shards"]
    return {name: parts for shard in shards for name, parts in shard["tensors"].items()}


def test_a_checkpoint_is_read_and_saved_again_with_the_same_digests(tmp_path, capsys):
    words = "--resume", CHECKPOINT, "--checkpoint", tmp_path / "again", "--steps", 2, *TEXT
    assert gpt2.main([*map(str, words)]) == 0
    again = tmp_path / "again" / CHECKPOINT.name
    before, after = (json.loads((place / "manifest.json").read_text()) for place in (CHECKPOINT, again))
    assert digests(again) == digests(CHECKPOINT) and len(digests(again)) == 28
    assert "optimizer" not in before["scalars"], "a save of then did not name its optimizer"
    before["scalars"] |= {"optimizer": "FusedAdamW"}
    assert [after[key] for key in ("step", "identity", "scalars")] == [
        before[key] for key in ("step", "identity", "scalars")
    ]


def test_a_checkpoint_is_gone_on_with_to_the_same_losses(tmp_path, capsys):
    assert_kept(LOSSES[2:], losses_of(tmp_path, "--resume", CHECKPOINT, *ARRANGED, "--steps", 4))


def test_a_trace_is_read_and_replayed(tmp_path, capsys):
    assert pipelined_command(["trace", str(DATA / "trace.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((DATA / "trace-told.json").read_text())
    assert_kept(LOSSES[:2], losses_of(tmp_path, *SIZES, "--steps", 2, "--replay", DATA / "trace.json"))


def test_a_plan_is_read(capsys):
    written = json.loads((DATA / "plan.json").read_text())["plan"]
    model = SIZES[: -len(ARRANGED)]
    assert gpt2.main(["--plan", str(DATA / "plan.json"), *model, *TEXT, "--print-config"]) == 0
    resolved = json.loads(capsys.readouterr().out)["resolved"]
    assert {name: resolved[name] for name in written} == written


def test_stages_that_a_swarm_saved_are_exported_with_the_same_digests(tmp_path, capsys):
    words = "export", "--checkpoint", DATA / "swarm", "--to", tmp_path / "model", *TEXT
    assert swarm.main([*map(str, words)]) == 0
    stages = [digests(manifest.parent) for manifest in DATA.glob("swarm/*/*/manifest.json")]
    saved = sorted(parts["value"]["sha256"] for stage in stages for parts in stage.values() if "value" in parts)
    with safe_open(tmp_path / "model" / "model.safetensors", "numpy") as file:
        exported = [hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() for name in file.keys()]
    assert set(saved) <= set(exported) and len(saved) > 10


def test_a_directory_recovers_from_its_journal(tmp_path):
    journal = shutil.copy(DATA / "journal", tmp_path)
    words = sys.executable, "-m", "apps.swarm"
    with started([*words, "coordinator", "--journal", journal]) as coordinator:
        address = re.search(r"tcp://[\d.:]+", coordinator.stdout.readline()).group()
        done = launched([*words, "status", "--coordinator", address, "--json"], timeout=30)
    told = json.loads(done.stdout)
    assert (told["step"], told["steps"], told["stages"], told["unreadable"]) == (2, 2, 2, {})
    assert told["loss"] == pytest.approx(5.538086175918579) and told["eval_step"] == 2
