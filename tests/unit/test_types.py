"""The types of the four packages and of the examples: mypy finds no error."""

import sys

from benchmarks.house import type_errors
from tests.launching import ROOT, launched


def test_no_package_has_type_errors():
    found = type_errors(ROOT).places
    assert not found, "\n".join(found)


def test_the_examples_have_no_type_errors_as_a_user_would_see_them():
    command = [sys.executable, "-m", "mypy", "--explicit-package-bases", *sorted((ROOT / "examples").glob("*.py"))]
    done = launched(command, timeout=110)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not [line for line in done.stdout.splitlines() if line.startswith("examples/")], done.stdout
