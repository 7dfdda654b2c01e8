"""The loop of a row of layers: what it reports, and what a run that goes on may change."""

import json

from apps.llama.__main__ import Config
from apps.rows.program import main

SMALL = "--layers 1 --seq 16 --batch 4 --sample 0 --tokenizer bytes".split()


def test_every_step_is_reported_also_of_a_schedule_without_a_flush(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("all the steps of a segment without a flush " * 40)
    metrics = tmp_path / "metrics"
    flags = [*SMALL, "--data", str(text), "--depth", "2", "--schedule", "async_1f1b", "--steps", "6"]
    assert main("apps.llama", Config(), [*flags, "--metrics", str(metrics)]) == 0
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(6))
    assert ["eval_loss" in row for row in rows] == [False] * 5 + [True]
    assert capsys.readouterr().out.count("step     1/6") == 1
