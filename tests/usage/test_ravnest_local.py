"""`python -m apps.ravnest local` trains: processes over TCP, every step shown once; `replay` has the same average."""

import json
import re
import sys
from subprocess import run

FLAGS = "--layers 2 --d-model 16 --heads 2 --batch 8 --microbatch 4 --seq 16 --lr 1e-2 --lease 60"


def ravnest(*words):
    done = run([sys.executable, "-m", "apps.ravnest", *map(str, words)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return done.stdout


def test_two_clusters_train_one_model_that_is_replayed_and_exported(tmp_path):
    metrics, orders, saved = (tmp_path / name for name in ("metrics.jsonl", "orders", "saved"))
    kept = ["--orders", orders, "--metrics", metrics, "--checkpoint", saved]
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
    (average,) = re.findall(r"^average (\w+)$", said, re.M)
    assert again.endswith(f"average {average}\n")
    written = ravnest("export", "--checkpoint", saved, "--to", tmp_path / "model", "--sample", 5)
    assert f"digest of all parameters after step 40: {average}" in written
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is False
