"""Did the launcher and the MPI library mean the same world? The one rule: N silent worlds of one rank are refused.

A launcher of one MPI and a library of another start every rank as a world of its own, with exit code 0: each would
train alone and overwrite the others' files. Reads the environment it is given and nothing else.
"""

import re
from collections.abc import Mapping

from transports.errors import RendezvousError

# The nearest launcher first: under Slurm mpirun starts its daemons with srun, whose count is not the world's.
_COUNTS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "the process manager (PMI)",
    "SLURM_STEP_NUM_TASKS": "srun",
    "SLURM_NTASKS": "Slurm",
}


_REMEDY = (
    "launcher and MPI library do not belong together; use the mpirun that pip installed beside the library, or under "
    "Slurm `srun --mpi=pmi2` with the mpich wheel, and start one program per launch"
)


def check_library(version: str, environ: Mapping[str, str]) -> None:
    """Refuse, before it is initialised, a library that cannot speak with the launcher.

    MPICH's dies of Open MPI's mpirun; Open MPI's (from 5.0) makes worlds of one rank where only PMI is spoken.

    Args:
        version: what the library says of itself.
    Raises:
        RendezvousError: they do not belong together; both are named.
    """
    spoken = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"} & environ.keys()
    count = environ.get("OMPI_COMM_WORLD_SIZE") or environ.get("PMI_SIZE")
    if version.startswith("MPICH") and "OMPI_COMM_WORLD_SIZE" in environ:
        raise RendezvousError(f"Open MPI's mpirun started {count} ranks, but the library is MPICH's: {_REMEDY}")
    if version.startswith("Open MPI") and "PMI_SIZE" in environ and not spoken:
        raise RendezvousError(f"a launcher that speaks PMI started {count} ranks, but Open MPI does not: {_REMEDY}")


def settings(version: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the library must find in its environment to start at all; what the user has set there stays.

    Slurm's PMI-2 takes values of 1,023 characters. MPICH's UCX module tells the other nodes its address in lines of up
    to 1,081, as long as the memory behind the address has few zeros; a start then aborts or hangs in MPI_Init. Over
    libfabric (`ofi`), which has InfiniBand too, the address is 16 bytes.

    Args:
        version: what the library says of itself.
    """
    both = re.search(r"^MPICH Device:.*\bch4:(ucx[ ,]ofi|ofi[ ,]ucx)", version, re.MULTILINE)
    name = "MPIR_CVAR_CH4_NETMOD"
    return {name: "ofi"} if both and environ.get("SLURM_MPI_TYPE") == "pmi2" and name not in environ else {}


def check_launcher(world_size: int, environ: Mapping[str, str]) -> None:
    """Compare the size of MPI's world with what the launcher says it started.

    Raises:
        RendezvousError: they differ; both numbers and the remedy are named.
    """
    found = size_by(environ)
    if found is not None and int(environ[found[0]]) != world_size:
        name, count = found
        raise RendezvousError(
            f"{_COUNTS[name]} started {count} ranks, but MPI sees a world of {world_size} "
            f"({name}={count}, world size: {world_size}): {_REMEDY}"
        )


def size_by(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable by which a launcher says how many ranks it started, and its value; None without a launcher."""
    return next(((name, environ[name]) for name in _COUNTS if environ.get(name, "").isdecimal()), None)
