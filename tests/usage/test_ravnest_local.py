"""`python -m apps.ravnest local`: processes over TCP, every step shown once; `replay` has the same average."""

import json
import re
import sys
from subprocess import run

import pytest

FLAGS = "--layers 2 --d-model 16 --heads 2 --batch 8 --microbatch 4 --seq 16 --lr 1e-2 --lease 60"
MAX_S = 500
"""Seconds of one command: at niceness 19 on two busy cores `local` took 45 to 414 s, and lost nothing."""
pytestmark = pytest.mark.timeout(MAX_S + 100)


def ravnest(*words):
    done = run([sys.executable, "-m", "apps.ravnest", *map(str, words)], capture_output=True, text=True, timeout=MAX_S)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.mark.in_turns(4)
def test_two_clusters_train_one_model_that_is_replayed_and_exported(tmp_path):
    metrics, orders, saved = (tmp_path / name for name in ("metrics.jsonl", "orders", "saved"))
    kept = [
        "--orders",
        orders,
        "--metrics",
        metrics,
        "--checkpoint",
        saved,
        "--export",
        tmp_path / "end",
        "--sample",
        5,
    ]
    said = ravnest("local", "--nodes", 3, "--clusters", 2, "--average-every", 8, "--steps", 40, *kept, *FLAGS.split())
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert sorted(row["step"] for row in rows) == list(range(40))
    assert sorted(int(step) for step in re.findall(r"^step (\d+): loss", said, re.M)) == list(range(40))
    first, last = (sum(row["loss"] for row in part) / 4 for part in (rows[:4], rows[-4:]))
    assert last < first - 0.3
    assert sorted({len(row["staleness"]) for row in rows}) == [1, 2]
    again = ravnest("replay", "--orders", orders)
    shown = r"^step (\d+): loss (\S+), cluster (\d)"
    assert sorted(re.findall(shown, again, re.M)) == sorted(re.findall(shown, said, re.M))
    assert said.endswith("\nlocal: all steps are trained; the nodes end\n")
    (average,) = re.findall(r"^average (\w+)$", said, re.M)
    assert again.endswith(f"average {average}\n")
    assert f"digest of all parameters after 40 steps: {average}" in said and "sample:\n" in said
    written = ravnest("export", "--checkpoint", saved, "--to", tmp_path / "model", "--sample", 5)
    assert f"digest of all parameters after 40 steps: {average}" in written
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is False
    ends = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("end", "model")]
    assert ends[0] == ends[1] and "model.safetensors" in ends[0]
