"""The house rules that a machine can hold: style, and imports that go down only."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.launching import launched

CHECKS = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]]


@pytest.mark.parametrize("check", CHECKS, ids=" ".join)
def test_the_house_is_in_order(check):
    program = shutil.which(check[0], path=str(Path(sys.executable).parent))
    done = launched([program, *check[1:]], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
