"""The command's ends: what happened in one line, and an exit code."""

import sys

import pytest

from apps import swarm
from apps._swarm_config import ChildFailed
from pipelined.errors import UsageError
from pipelined.swarm.directory import CutOff
from pipelined.swarm.watched import Stuck
from tests.terminal import closed_over

CASES = [
    (CutOff("no answer"), 1),
    (Stuck("the device is stuck"), 1),
    (ChildFailed("a trainer", -9), 1),
    (ChildFailed("a trainer", 2), 2),
    (UsageError("no"), 2),
]


@pytest.mark.parametrize("error, code", CASES)
def test_a_failure_that_is_known_ends_in_a_line_and_a_code(monkeypatch, capsys, error, code):
    async def fail(flags):
        raise error

    monkeypatch.setattr(swarm, "_work", fail)
    assert swarm.main(["coordinator"]) == code
    assert str(error) in capsys.readouterr().err


def test_a_coordinator_whose_terminal_is_closed_ends_in_order():
    assert closed_over(sys.executable, "-m", "apps.swarm", "coordinator") == 0
