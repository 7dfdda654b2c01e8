"""`python -m pipelined bench`: the benchmarks listed by their own words, and run by name."""

import json
import sys

import pytest

from pipelined.__main__ import main
from tests.launching import ROOT

PROGRAM = '''"""Count what it was given.

No more than that.
"""
import sys
print(len(sys.argv) - 1, *sys.argv[1:])
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of its own to begin in, without the project's benchmarks."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(entry for entry in sys.path if entry not in ("", str(ROOT)))])
    monkeypatch.setattr(sys, "argv", ["pipelined"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.fixture
def one_benchmark(folder):
    """A folder with one benchmark and one other file."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "__init__.py").touch()
    (folder / "benchmarks" / "counting.py").write_text(PROGRAM)
    (folder / "benchmarks" / "_piece.py").write_text("raise SystemExit('a piece is no program')\n")


def test_every_benchmark_is_listed_with_its_first_line(capsys):
    assert main(["bench", "--json"]) == 0
    summaries = json.loads(capsys.readouterr().out)
    files = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_")]
    assert sorted(summaries) == sorted(files)
    assert all(f"benchmarks.{name}" in summary for name, summary in summaries.items())


def test_a_list_is_text_for_people(one_benchmark, capsys):
    assert main(["bench"]) == 0
    assert capsys.readouterr().out == "counting  Count what it was given.\n"


def test_a_benchmark_gets_the_flags_that_are_its_own(one_benchmark, capsys):
    assert main(["bench", "counting", "--rounds", "3", "--json"]) == 0
    assert capsys.readouterr().out == "3 --rounds 3 --json\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "absent"], "no benchmark is called 'absent'; known: counting"),
        (["bench", "--rounds=3"], "flags without a benchmark to take them (--rounds=3); name one first"),
    ],
)
def test_what_cannot_be_run_is_refused(one_benchmark, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_where_there_are_none_the_remedy_is_reported(folder, capsys):
    assert main(["bench"]) == 2
    assert "run this in a checkout" in capsys.readouterr().err
