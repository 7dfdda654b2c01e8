"""The types of the four packages: mypy finds no error, but for the rooms that are still listed here."""

import sys
from collections import Counter
from pathlib import Path

from benchmarks.house import type_errors
from tests.launching import ROOT, launched

MOST: dict[str, int] = {
    "pipelined/training": 3,
}
"""The most type errors of a room that is not clean yet. A number may only fall; a clean room has no line."""


def test_no_room_has_type_errors_beyond_those_listed():
    found = type_errors(ROOT).places
    rooms = Counter(str(Path(error.partition(":")[0]).parent) for error in found)
    over = {room: (number, MOST.get(room, 0)) for room, number in rooms.items() if number > MOST.get(room, 0)}
    assert not over, "\n".join(error for error in found if str(Path(error.partition(":")[0]).parent) in over)


def test_the_examples_have_no_type_errors_as_a_user_would_see_them():
    command = [sys.executable, "-m", "mypy", "--explicit-package-bases", *sorted((ROOT / "examples").glob("*.py"))]
    done = launched(command, timeout=110)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not [line for line in done.stdout.splitlines() if line.startswith("examples/")], done.stdout
