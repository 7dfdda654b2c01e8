"""The fixed list of runs with kept losses: what is compared, and what is kept of each run."""

import json
import sys

import pytest

from benchmarks import losses
from benchmarks.losses import Options, RunError, check, difference, rows_of, save
from benchmarks.pipelines.loss_runs import FILES, LEFT_OUT, METRICS, RUNS, Run
from pipelined.errors import UsageError
from pipelined.schedules import schedule_names

WRITES = f"""
import json, pathlib, sys
lines = [{{"step": 0, "loss": float(sys.argv[1]), "grad_norm": 2.0, "step_s": 0.1}}, {{"step": 1, "eval_loss": 0.1}}]
with open("{METRICS}", "a") as file:
    file.writelines(json.dumps(line) + chr(10) for line in lines)
sys.exit(len(sys.argv) > 2)
"""
ROWS = [{"step": 0, "loss": 0.3, "grad_norm": 2.0}, {"step": 1, "eval_loss": 0.1}]


@pytest.fixture
def run(tmp_path):
    """A run of a small program, which appends these losses; a second word makes it fail."""
    (tmp_path / "writes.py").write_text(WRITES)

    class Small(Run):
        def words(self):
            return [[sys.executable, str(tmp_path / "writes.py"), *command.split()] for command in self.commands]

    return lambda *commands: Small("small", commands)


def test_what_a_run_measured_is_kept_without_times(run):
    assert rows_of(run("0.3")) == ROWS
    assert rows_of(run("0.3", "0.3")) == ROWS + ROWS


def test_a_run_that_fails_says_so(run):
    with pytest.raises(RunError, match="code 1"):
        rows_of(run("0.3 fail"))


@pytest.mark.parametrize(
    "found, told",
    [
        (ROWS, ""),
        (ROWS[:1], "1 lines, 2 kept"),
        ([{**ROWS[0], "loss": 0.1 + 0.2}, ROWS[1]], "step 0: loss 0.30000000000000004, kept 0.3"),
        ([ROWS[0], {"step": 1}], "step 1: eval_loss None, kept 0.1"),
    ],
)
def test_the_first_figure_that_differs_is_named(found, told):
    assert difference(ROWS, found) == told


def test_a_run_is_compared_with_what_was_kept(run):
    kept = {}
    assert save(run("0.3"), kept) == "" and json.loads(json.dumps(kept))["small"]["rows"] == ROWS
    assert check(run("0.3"), kept) == ""
    kept["small"]["rows"][0]["loss"] = 0.31
    assert check(run("0.3"), kept) == "step 0: loss 0.3, kept 0.31"
    assert "commands" in check(run("0.4"), kept) and "nothing is kept" in check(run("0.3"), {})
    assert "code 1" in check(run("0.3 fail"), {"small": {"commands": ["0.3 fail"], "rows": ROWS}})


def test_a_run_that_is_not_the_same_twice_is_not_kept(run, monkeypatch):
    kept, times = {"small": {}}, iter([ROWS, ROWS[:1]])
    monkeypatch.setattr(losses, "rows_of", lambda _: next(times))
    assert save(run("0.3"), kept) == "not the same twice: 1 lines, 2 kept" and kept == {}


def test_every_run_of_the_list_is_kept_as_it_is_now():
    kept = losses.written()["runs"]
    assert {run.name: list(run.commands) for run in RUNS} == {name: each["commands"] for name, each in kept.items()}
    assert all(each["rows"] for each in kept.values())


def test_every_family_of_schedules_is_in_the_list():
    alike = {"dualpipe_v": "dualpipe"}
    commands = " ".join(command for run in RUNS for command in run.commands)
    names = [name for name in schedule_names() if name not in LEFT_OUT]
    missing = [name for name in names if f"--schedule {alike.get(name, name)} " not in commands]
    assert missing == []


def test_the_commands_share_flags_which_stand_before_their_own(monkeypatch):
    words = Run("x", ("python -m apps.gpt2 --depth 2", "python -m apps.swarm local --peers 3")).words()
    assert words[0][:3] == [sys.executable, "-m", "apps.gpt2"] and words[0][-2:] == ["--depth", "2"]
    assert METRICS in words[0] and words[1][3] == "local" and words[1][-2:] == ["--peers", "3"]
    assert set(FILES) == {"text.txt", "own.csv"}
    (bare,) = Run("x", ("python -m apps.gpt2 --steps 1",), bare=True).words()
    assert "--layers" not in bare and METRICS in bare and bare[-2:] == ["--steps", "1"]


@pytest.mark.parametrize("wrong", [{}, {"check": True, "save": True}, {"check": True, "only": ("nothing",)}])
def test_wrong_flags_are_refused(wrong):
    with pytest.raises(UsageError):
        Options(**wrong)
