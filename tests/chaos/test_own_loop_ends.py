"""A user's own loop that ends on one rank ends the job on all, by an error that names the rank and the reason."""

import re

import pytest

from tests.launching import launched, mpirun


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", r"rank 1 left its training loop: ValueError\('no more data'\)"),
        ("save", r"the ranks call different methods of the trainer \(rank 0: save, rank 1: step\)"),
        pytest.param("early", r"rank 0: lost rank 1 \(stages 1\): it closed", marks=pytest.mark.full),
    ],
)
def test_a_loop_that_ends_on_one_rank_ends_on_all(fault, reason):
    command, env = mpirun("mpich", 2, "-m")
    done = launched([*command, "tests.chaos.own_loop", fault], timeout=60, env=env)
    assert done.returncode not in (0, None), done.stdout + done.stderr
    assert re.search(reason, done.stderr), done.stderr
