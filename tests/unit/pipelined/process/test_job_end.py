"""Which programs are interrupted without a traceback: those of the project, and no program of a user."""

import sys

import pytest

from pipelined.process.job_end import interrupt_quietly


@pytest.mark.parametrize(
    ("command", "quiet"),
    [
        ("python -m pipelined schedule gpipe", True),
        ("python3 -X dev -W error -u -m apps.gpt2 --width 2", True),
        ("python -um pipelined.apps.swarm", True),
        ("python /venv/bin/pipelined-gpt2 --width 2", True),
        ("python /venv/bin/pipelined doctor", True),
        ("python mine.py --out pipelined", False),
        ("python -u mine.py -m pipelined", False),
        ("python -m mine pipelined", False),
        ("python -c pass apps.gpt2", False),
        ("python", False),
    ],
)
def test_ctrl_c_prints_no_traceback_of_a_program_of_the_project_alone(command, quiet, monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(kind))
    interrupt_quietly(command.split())
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert printed == ([] if quiet else [KeyboardInterrupt])
