"""An error of `pipelined` that a user's own program does not catch: one message, and one exit code on every rank."""

import re
import sys

import pytest

from tests.launching import launched, mpirun

AUTOCAST = "train: error: autocast= must be a bool, torch.bfloat16 or torch.float16 (got: dtype torch.int8)"
REFUSED = {
    "arguments": AUTOCAST,
    "arguments of one rank": AUTOCAST,
    "batches": "train: error: cannot write /absent/state.pt",
    "a loss of one rank": "train: error: the loss does not depend on the model's outputs",
    "a trainer": "Trainer: error: ",
    "a trainer's step": "Trainer: error: the batch has 6 rows",
    "a trainer's step on one rank": "Trainer: error: the batch has 6 rows",
    "a trainer's step without a block": "Trainer: error: the batch has 2 rows",
    "a plan": "plan: error: no plan fits the memory",
}


def beside(*in_each_pass):
    """The places that are refused, of which only some are tried in each pass: a process takes seconds."""
    return [place if place in in_each_pass else pytest.param(place, marks=pytest.mark.full) for place in REFUSED]


def messages(place, command, env=None):
    """The lines of ours that a refused program prints; its code is 2."""
    done = launched([*command, "tests.usage.ends", place], timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    return [line for line in done.stderr.splitlines() if not line.startswith("Abort(2) on node 0")]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("place", beside("batches", "a trainer's step without a block"))
def test_a_refusal_is_one_line_and_exit_code_2(place):
    (line,) = messages(place, [sys.executable, "-m"])
    assert line.startswith(f"pipelined.{REFUSED[place]}")


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("place", beside("arguments of one rank", "a trainer's step on one rank"))
def test_a_refusal_on_two_ranks_is_one_line_and_exit_code_2(place):
    command, env = mpirun("mpich", 2, "-m")
    (line,) = messages(place, command, env)
    assert line.startswith(f"pipelined.{REFUSED[place]}")


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("place", "code", "says"),
    [
        ("a failing loss", 1, "rank 1, step 0: forward of microbatch 0 through stage 1"),
        pytest.param("a trainer's failing loss", 1, "rank 1, step 0: forward", marks=pytest.mark.full),
        ("another error", 1, "Traceback"),
        pytest.param("an interrupt", 130, "", marks=pytest.mark.full),
        ("an interrupted loop", 130, ""),
    ],
)
def test_a_failure_is_printed_once(place, code, says):
    done = launched([sys.executable, "-m", "tests.usage.ends", place], timeout=60)
    assert done.returncode == code and done.stderr.startswith(says), done.stderr
    assert len(re.findall(r"(?m)^ZeroDivisionError|^FileNotFoundError", done.stderr)) == (code == 1)
    assert bool(done.stderr) == bool(says)
