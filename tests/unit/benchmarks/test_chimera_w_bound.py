"""The published exceptions to Chimera-W's bound are what its program finds, and its regions are those described."""

import re

import pytest

from benchmarks.chimera_w_bound import EVEN, TILED, UNEVEN, Options, exceptions, find_excess, grid, kind
from pipelined.__main__ import main
from tests.launching import ROOT

DOCUMENT = (ROOT / "docs" / "chimera_w.md").read_text()


def test_the_grid_shown_is_what_the_command_prints(capsys):
    assert main(["schedule", "chimera_w", "--depth", "4", "--microbatches", "4"]) == 0
    assert capsys.readouterr().out in re.findall(r"^```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("costs", [(20, 22, 18), (4, 1, 2)])
def test_the_published_row_is_what_is_found(costs):
    options = Options()
    *_, row = exceptions([find_excess(costs, options)], options.units)
    assert row in DOCUMENT.splitlines()


def test_every_row_is_of_the_grid_and_in_its_region():
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.splitlines() if line.endswith(("| yes |", "| no |"))]
    assert len(rows) > 20
    for region, *cells in rows:
        costs = tuple(map(int, cells[:3]))
        assert costs in grid(Options().largest)
        assert kind(costs) == region


def test_costs_that_are_no_exception_lie_in_their_region():
    assert {kind(costs) for costs in ((1, 1, 1), (2, 2, 1), (2, 1, 2), (3, 1, 2), (4, 1, 3))} == {TILED}
    assert kind((6, 5, 4)) == EVEN and kind((5, 1, 3)) == kind((5, 4, 3)) == UNEVEN


def test_what_is_found_is_in_units_of_the_bound():
    found = find_excess((4, 4, 1), Options(depths=(6,), units=(1, 2)))
    assert found.excess == {(6, 1, 1): 1.5, (6, 1, 2): 1.5}
    assert (found.exact, found.within, found.longest(2)) == (False, False, (1.5, (-6, -1, 2)))
