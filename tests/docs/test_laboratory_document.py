"""docs/laboratory.md is one program, which prints what the page shows."""

import re
import runpy

import pytest

from tests.launching import ROOT

CELLS = re.findall(r"^```(python|text)\n(.*?)^```$", (ROOT / "docs" / "laboratory.md").read_text(), re.M | re.S)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a program as `python PROGRAM`; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(program):
        runpy.run_path(str(program), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_cell_prints_what_the_page_shows(run, tmp_path):
    page = tmp_path / "page.py"
    page.write_text("\n".join(text for kind, text in CELLS if kind == "python"))
    assert run(page) == "".join(text for kind, text in CELLS if kind == "text")
    assert (tmp_path / "chimera.svg").stat().st_size > 1000


def test_the_example_plans_and_draws(run, tmp_path):
    program = ROOT / "examples" / "laboratory.py"
    assert len(program.read_text().splitlines()) <= 25
    printed = run(program)
    assert "zb_h1" in printed and "ms a step" in printed
    assert (tmp_path / "plan.svg").stat().st_size > 1000
