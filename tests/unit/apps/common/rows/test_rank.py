"""The loop of a row of layers: what it reports, and what a run that goes on may change."""

import json

import pytest

from apps.common.rows.program import main
from apps.llama.__main__ import LlamaFlags

SMALL = "--layers 1 --seq 16 --batch 4 --sample 0 --tokenizer bytes".split()


def test_every_step_is_reported_also_of_a_schedule_without_a_flush(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("all the steps of a segment without a flush " * 40)
    metrics = tmp_path / "metrics"
    flags = [*SMALL, "--data", str(text), "--depth", "2", "--schedule", "async_1f1b", "--steps", "6"]
    assert main("apps.llama", LlamaFlags(), [*flags, "--metrics", str(metrics)]) == 0
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(6))
    assert ["eval_loss" in row for row in rows] == [False] * 5 + [True]
    assert capsys.readouterr().out.count("step     1/6") == 1


def test_another_text_is_refused_on_resume_unless_it_is_meant(tmp_path, capsys):
    for name in ("first", "other"):
        (tmp_path / name).write_text(f"the {name} text, " * 60)
    flags = [*SMALL, "--depth", "1", "--checkpoint", str(tmp_path / "saved"), "--resume", "auto", "--data"]

    def run(text: str, steps: int, *more: str) -> int:
        return main("apps.llama", LlamaFlags(), [*flags, str(tmp_path / text), "--steps", str(steps), *more])

    assert run("first", 1) == 0
    manifest = json.loads((tmp_path / "saved" / "step-00000001" / "manifest.json").read_text())
    assert sorted(manifest["config"]["text"]) == ["data", "tokenizer"]
    capsys.readouterr()
    assert run("other", 2) == 2
    assert "was trained on other data (data: " in capsys.readouterr().err
    assert run("first", 2) == 0
    assert run("other", 3, "--new-data") == 0


@pytest.mark.parametrize(("flag", "part"), [("--data", ""), ("--val-data", "validation ")])
def test_too_little_text_is_refused_before_it_is_shared_among_the_ranks(flag, part, tmp_path, capsys, monkeypatch):
    """Later each rank would raise by itself, and a launcher would report an abort beside the message."""
    monkeypatch.setattr("apps.common.lm.data.text.broadcast_object", None)
    for name, text in (("long", "enough for a sequence, " * 60), ("short", "not enough")):
        (tmp_path / name).write_text(text)
    data = {"--data": "long", "--val-data": "long", flag: "short"}
    files = [word for each, name in data.items() for word in (each, str(tmp_path / name))]
    assert main("apps.llama", LlamaFlags(), [*SMALL, *files, "--depth", "2", "--steps", "1"]) == 2
    said = capsys.readouterr()
    assert f"too little {part}text" in said.err and "step" not in said.out


def test_a_run_that_goes_on_needs_no_flag_again_and_has_the_losses_of_one_that_was_not_stopped(tmp_path):
    (tmp_path / "text").write_text("the flags of a run are in its checkpoint, " * 40)
    flags = [*SMALL, "--data", str(tmp_path / "text"), "--lr", "1e-2", "--warmup", "1", "--seed", "5"]
    saved = ["--checkpoint", str(tmp_path / "saved")]

    def losses(name: str, *words: str) -> list[float]:
        metrics = tmp_path / name
        assert main("apps.llama", LlamaFlags(), [*words, "--metrics", str(metrics)]) == 0
        return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]

    straight = losses("straight", *flags, "--steps", "4", "--depth", "1", "--lr-schedule", "constant")
    stopped = losses("stopped", *flags, *saved, "--steps", "2", "--depth", "1", "--lr-schedule", "constant")
    resumed = losses("resumed", *saved, "--resume", "auto", "--steps", "4", "--sample", "0", "--depth", "1")
    assert stopped + resumed == straight
