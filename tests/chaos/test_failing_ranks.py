"""Faults crossed with launchers: after any fault of one rank all ranks end in time, and one of them names it."""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.faulty import CASE, Fault
from tests.launching import launched, mpirun

RANK, STEP = 2, 3
SECONDS = 10
BUSY = 4
"""By how much longer a job may take where other tests run beside it: without --full."""
STAGES = CASE.plan.stages_of(RANK)
TORCHRUN = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", CASE.plan.world_size, "-m"]


@pytest.fixture
def seconds(request):
    """What is promised; more where other tests may run beside this one."""
    return SECONDS * (1 if request.config.getoption("--full") else BUSY)


def suffer(launcher, fault, seconds):
    """Run a job in which one rank suffers a fault; what came of it, and how long after the first step it ended."""
    words = {"alone": [sys.executable, "-m"], "torchrun": TORCHRUN}
    command, env = (words[launcher], {}) if launcher in words else mpirun(launcher, CASE.plan.world_size, "-m")
    done = launched([*command, "tests.chaos.faulty", fault, RANK, STEP], timeout=110, env=env)
    struck = float(re.search(r"struck at ([\d.]+)", done.stdout)[1])
    assert done.returncode not in (0, None), done.stderr
    assert time.time() - struck < seconds, done.stderr
    return done


def told_by_ranks(text):
    """The lines in which ranks say what they lost."""
    return [line for line in text.splitlines() if re.match(r"rank \d+: lost", line)]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    "launcher", ["alone", "mpich", *(pytest.param(name, marks=pytest.mark.full) for name in ("torchrun", "openmpi"))]
)
def test_a_rank_that_raises_names_itself_its_stage_and_microbatch_once(launcher, seconds):
    done = suffer(launcher, Fault.RAISE, seconds)
    assert done.returncode == 1
    blamed = re.findall(
        r"^rank (\d), step (\d): forward of microbatch \d through stage (\d)", done.stderr, re.MULTILINE
    )
    assert blamed in [[(str(RANK), str(STEP), str(stage))] for stage in STAGES], done.stderr
    assert "tests/chaos/faulty.py" in done.stderr, "where in the model it happened"
    assert told_by_ranks(done.stderr) == []


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("launcher", "fault"),
    [
        ("alone", Fault.DIE),
        ("torchrun", Fault.KILL),
        pytest.param("torchrun", Fault.DIE, marks=pytest.mark.full),
        pytest.param("torchrun", Fault.EXIT, marks=pytest.mark.full),
    ],
)
def test_survivors_name_the_dead_rank_its_stages_and_the_last_microbatch_received_from_it(launcher, fault, seconds):
    done = suffer(launcher, fault, seconds)
    told = told_by_ranks(done.stderr)
    assert told, done.stderr
    for line in told:
        stages = ", ".join(map(str, STAGES))
        assert f"lost rank {RANK} (stages {stages}): " in line
        assert re.search(
            rf"last heard from it: (activation|gradient) of microbatch \d \(step {STEP - 1}|{STEP}, ", line
        )


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("launcher", "fault"),
    [
        ("mpich", Fault.KILL),
        pytest.param("mpich", Fault.EXIT, marks=pytest.mark.full),
        pytest.param("openmpi", Fault.KILL, marks=pytest.mark.full),
    ],
)
def test_under_mpirun_the_rank_that_was_killed_is_named_and_no_other(launcher, fault, seconds):
    done = suffer(launcher, fault, seconds)
    assert re.search(rf"\brank {RANK}\b", done.stderr), done.stderr
    assert not re.search(rf"\brank [^{RANK}]\b", done.stderr), done.stderr
