"""The house rules that a machine can hold: style, and imports that go down only."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.launching import ROOT, launched

CHECKS = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]]


@pytest.mark.parametrize("check", CHECKS, ids=" ".join)
def test_the_house_is_in_order(check):
    program = shutil.which(check[0], path=str(Path(sys.executable).parent))
    done = launched([program, *check[1:]], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_test_file_has_a_name_of_its_own():
    """pytest imports test files by their base name: two of one name end the collection of all tests."""
    names = Counter(path.name for path in ROOT.glob("tests/**/test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
