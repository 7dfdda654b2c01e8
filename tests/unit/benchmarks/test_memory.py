"""The memory benchmark from its command to its figures, on a model small enough for a test."""

import json

import pytest

from tests.launching import launched, mpirun

SMALL = "--layers 2 --d-model 32 --heads 2 --vocab 64 --seq 16 --microbatch 2 --microbatches 6".split()


@pytest.mark.in_turns(2)
@pytest.mark.timeout(120)
def test_two_ranks_hold_what_they_may_and_one_process_is_reported_beside_them():
    command, env = mpirun("mpich", 2, "-m", "benchmarks.memory", *SMALL, "--json")
    done = launched(command, timeout=110, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    rows, alone = told["ranks"], told["one_process"]
    assert [row["stages"] for row in rows] == [[0, 1], [0, 1]]
    assert all(row["within"] and 0 < row["live"] <= 2 for row in rows)
    assert (alone["stages"], alone["live"], alone["counted"]) == ([0], 1, alone["bound"])
    assert all(row["parameters"] == row["gradients"] == alone["parameters"] for row in rows)  # both stages, both pipes
    assert all(row["resident"] > 0 for row in (*rows, alone))
    assert all(row["near"] for row in (*rows, alone))
