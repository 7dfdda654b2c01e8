"""The house rules that a machine can hold: style, imports that go down only, tables of plug-ins, and counts."""

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.house_rules.counts import counts
from benchmarks.house_rules.tree import Tree
from benchmarks.house_rules.types import FUNCTIONS
from collectives.algorithms import ALL_REDUCE, TABLES
from pipelined.__main__ import COMMANDS
from pipelined.schedules.registry import SCHEDULES
from tests.launching import ROOT, launched
from transports.codecs.registry import CODECS
from transports.registry import TRANSPORTS
from transports.rpc.registry import ENDPOINTS

CHECKS = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]]


@pytest.mark.parametrize("check", CHECKS, ids=" ".join)
def test_the_house_is_in_order(check):
    program = shutil.which(check[0], path=str(Path(sys.executable).parent))
    done = launched([program, *check[1:]], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tree():
    return Tree(ROOT)


def modules_that_define(tree, *functions):
    """The modules of the four packages that define all these functions at their top."""
    defined = {m.name: {node.name for node in m.tree.body if isinstance(node, FUNCTIONS)} for m in tree}
    return {name for name, names in defined.items() if names.issuperset(functions)}


@pytest.mark.parametrize(
    ("functions", "listed"),
    [
        (["open_url"], [*TRANSPORTS.values(), *ENDPOINTS.values()]),
        (["build"], CODECS.values()),
        (["stage_map", "schedule"], SCHEDULES.values()),
        (["add_arguments", "run"], COMMANDS.values()),
    ],
    ids=["transports", "codecs", "schedules", "commands"],
)
def test_every_plug_in_stands_in_its_table(tree, functions, listed):
    assert modules_that_define(tree, *functions) == {entry.partition(":")[0] for entry in listed}


@pytest.mark.parametrize(("folder", "table"), TABLES.items(), ids=TABLES)
def test_every_algorithm_stands_in_its_table(tree, folder, table):
    folder = f"collectives.algorithms.{folder}"
    listed = {entry.partition(":")[0] for entry in table.entries.values()}
    assert {f"{folder}.{name}" for name in tree.entries(folder)} == listed


@pytest.mark.parametrize("table", [CODECS, ALL_REDUCE.entries, SCHEDULES], ids=["codecs", "all_reduce", "schedules"])
def test_a_plug_in_has_the_name_of_its_file(table):
    assert {name: entry.partition(":")[0].rpartition(".")[2] for name, entry in table.items()} == {n: n for n in table}


NOT_YET = {
    "lines": (95_500, 4),  # 91,850 while one line held several assignments of unlike values, and several steps
    "constructors with over 2 callables": (1, 1),  # `Trainer`: optimizer, loss, scheduler and schedule are a user's
    "sleeps of tests": (9, 7),  # slow peers, cut links, work with a known price, and `virtual_seconds` itself
}
"""Counts of `benchmarks.house` that are beyond their goal: (the number, the places), which may only fall."""


def test_every_count_of_the_house_meets_its_goal_or_does_not_rise(tree):
    for count in counts(tree):
        number, places = NOT_YET.get(count.name, (count.goal, 0))
        found = f"{count.name}: {count.number:g}, at most {number:g}\n" + "\n".join(count.places)
        assert count.number <= number, found
        assert count.is_met or len(count.places) <= places, found
