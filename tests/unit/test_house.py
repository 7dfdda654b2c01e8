"""The house rules that a machine can hold: style, and imports that go down only."""

import ast
import shutil
import sys
from pathlib import Path

import pytest

from collectives.all_reduce.registry import ALGORITHMS
from pipelined.__main__ import COMMANDS
from pipelined.schedules.registry import SCHEDULES
from tests.launching import ROOT, launched
from transports.codecs.registry import CODECS
from transports.registry import TRANSPORTS
from transports.rpc.registry import ENDPOINTS

FLOORS = ("transports", "collectives", "pipelined", "apps")
CHECKS = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]]


@pytest.mark.parametrize("check", CHECKS, ids=" ".join)
def test_the_house_is_in_order(check):
    program = shutil.which(check[0], path=str(Path(sys.executable).parent))
    done = launched([program, *check[1:]], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def modules_that_define(*functions):
    """The modules of the four packages that define all these functions at their top."""
    found = set()
    for path in (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")):
        body = ast.parse(path.read_text()).body
        names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        if names.issuperset(functions):
            found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


@pytest.mark.parametrize(
    ("functions", "listed"),
    [
        (["open_url"], [*TRANSPORTS.values(), *ENDPOINTS.values()]),
        (["build"], CODECS.values()),
        (["all_reduce", "cost"], ALGORITHMS.values()),
        (["layout", "schedule"], SCHEDULES.values()),
        (["add_arguments", "run"], [module.__name__ for module in COMMANDS.values()]),
    ],
    ids=["transports", "codecs", "all_reduce", "schedules", "commands"],
)
def test_every_plug_in_stands_in_its_table(functions, listed):
    assert modules_that_define(*functions) == {entry.partition(":")[0] for entry in listed}


@pytest.mark.parametrize("table", [CODECS, ALGORITHMS, SCHEDULES], ids=["codecs", "all_reduce", "schedules"])
def test_a_plug_in_has_the_name_of_its_file(table):
    assert {name: entry.partition(":")[0].rpartition(".")[2] for name, entry in table.items()} == {n: n for n in table}
