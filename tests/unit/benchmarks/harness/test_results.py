"""What every benchmark says in the end, and the raw figures it keeps."""

import json
import sys
from dataclasses import dataclass

import pytest

from benchmarks.harness import results as _results
from benchmarks.harness.results import Reported, tell
from pipelined.errors import UsageError


@dataclass(frozen=True)
class Options(Reported):
    rounds: int = 3


FOUND = {"rows": [1.5, 2.5]}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_benchmark_prints_its_table_or_its_json(as_json, capsys):
    tell(Options(json=as_json), FOUND, lambda: "a table")
    assert capsys.readouterr().out == (json.dumps(FOUND) if as_json else "a table") + "\n"


def test_raw_figures_are_kept_with_date_commit_command_and_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_results.save, "__defaults__", (tmp_path / "results",))
    monkeypatch.setattr(sys, "argv", ["/some/where/benchmarks/tcp.py", "--save", "quiet"])
    tell(Options(save="quiet"), FOUND, lambda: "a table")
    kept = json.loads((tmp_path / "results" / "tcp-quiet.json").read_text())
    assert kept["found"] == FOUND and kept["program"] == "tcp"
    assert kept["command"] == ["python", "-m", "benchmarks.tcp", "--save", "quiet"]
    assert kept["date"].startswith("20") and kept["cores"] > 0 and kept["python"] and kept["numpy"]
    assert "commit" in kept and kept["ranks"] == 1
    assert "tcp-quiet.json" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["../up", "a b", "a/b"])
def test_a_word_that_is_no_file_name_is_refused(word):
    with pytest.raises(UsageError, match="no part of a file's name"):
        Options(save=word)
