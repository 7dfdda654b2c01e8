"""Ctrl-C while a program is being imported ends it at once, and prints nothing."""

import os
import signal
import sys

import pytest

from tests.launching import launched, mpirun

INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
"""Stands in for a module that all programs import early."""


@pytest.fixture
def env(tmp_path):
    (tmp_path / "tyro").mkdir()
    (tmp_path / "tyro" / "__init__.py").write_text(INTERRUPTED)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize("program", ["apps.gpt2", "pipelined.apps.gpt2", "apps.swarm", "apps.ravnest", "apps.vgg"])
def test_a_program_that_is_interrupted_while_it_is_imported_prints_nothing(program, env):
    done = launched([sys.executable, "-m", program, "--help"], timeout=60, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ranks_that_are_interrupted_while_they_are_imported_end_with_130(env):
    command, more = mpirun("mpich", 2, "-m", "apps.gpt2", "--help")
    done = launched(command, timeout=60, env={**env, **more})
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr


def test_a_program_of_a_user_shows_where_it_was_interrupted(env):
    done = launched([sys.executable, "-c", "import pipelined, tyro"], timeout=60, env=env)
    assert done.returncode == -signal.SIGINT and done.stderr.rstrip().endswith("KeyboardInterrupt")
