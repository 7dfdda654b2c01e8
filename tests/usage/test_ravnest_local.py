"""`python -m apps.ravnest local` trains: three processes of one cluster over TCP, every step shown once, in order."""

import json
import re
import sys
from subprocess import run

FLAGS = "--nodes 3 --clusters 1 --layers 2 --d-model 16 --heads 2 --batch 8 --seq 16 --steps 20 --lr 1e-2 --lease 60"


def test_three_nodes_train_one_model(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    words = [sys.executable, "-m", "apps.ravnest", "local", *FLAGS.split(), "--metrics", str(metrics)]
    done = run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [int(step) for step in re.findall(r"^step (\d+): loss", done.stdout, re.M)] == list(range(20))
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(20))
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    assert all(len(row["staleness"]) == 3 and row["staleness"][-1] == 0 for row in rows)
    assert not done.stderr
