"""`mpi://`: load MPI, check that it matches the launcher, initialise it within a time limit, open the transport.

Only this module loads MPI, so `transports.mpi.transport` may import it at its top.

`check_library` and `check_launcher`: if launcher and library belong to different MPIs, every rank starts as a world of
its own, with exit code 0; each would train alone and overwrite the others' files.

`init_timeout`: `MPI_Init` and the calls after it block in C until every rank has started, and cannot be cancelled. A
timer ends the process with the exit code of bad input, and the launcher then ends the other ranks. The timer of rank 0
fires first, so that only its message is printed; if rank 0 itself is missing, the other ranks print theirs.

`unlink_segments`: MPICH's ranks of a node share `/dev/shm/mpich_shm_*`. They map it in MPI_Init, and MPI_Finalize
removes its name, so a killed job would leave it until the machine restarts. The kernel keeps unnamed memory while a
process maps it, so the name can be removed as soon as all ranks have mapped it.
"""

import ctypes
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from transports.base import Transport
from transports.errors import RendezvousError
from transports.urls import ParsedUrl

# Innermost launcher first: under Slurm, mpirun starts its daemons with srun, and srun's count is not the world size.
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
WAIT_S = 300.0
GRACE_S = 5.0
"""Seconds by which the other ranks wait longer than rank 0, so that rank 0 alone reports."""
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
USAGE_EXIT_CODE = 2
MAPS = Path("/proc/self/maps")
_SEGMENT = re.compile(r"(?<=\s)/dev/shm/mpich_shm_\w+$", re.MULTILINE)


def load_library() -> ModuleType:
    """mpi4py's MPI module, initialised for calls from this thread alone (or more).

    Raises:
        RendezvousError: mpi4py or an MPI library is missing, the library is not the launcher's, or this thread may not
            call it.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        remedy = "pip install 'pipelined[mpich]', or 'pipelined[mpi]' where the machine has an MPI of its own"
        raise RendezvousError(f"no MPI library could be loaded ({reason}); {remedy}") from error
    if not MPI.Is_initialized():
        version = MPI.Get_library_version()
        check_library(version, os.environ)
        os.environ.update(required_environment(version, os.environ))
        _initialise(MPI)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
        raise RendezvousError("MPI may only be called from the thread that loaded it; open the transport there")
    return MPI


def _initialise(MPI: ModuleType) -> None:
    """Call `MPI_Init_thread` by ctypes, which lets other threads run meanwhile; mpi4py's own call does not.

    Then set the error handlers of COMM_SELF and COMM_WORLD as mpi4py does after its own call.
    """
    init = getattr(ctypes.CDLL(MPI.__file__), "MPI_Init_thread", None)
    if init is None:  # not exported by this build of mpi4py
        MPI.Init_thread(MPI.THREAD_FUNNELED)
        return
    if error := init(None, None, ctypes.c_int(MPI.THREAD_FUNNELED), ctypes.byref(ctypes.c_int())):
        raise RendezvousError(f"MPI_Init_thread failed (error code: {error}); see what the library printed above")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)


async def open_url(url: ParsedUrl) -> Transport:
    """Open this rank's end of MPI's world, `mpi://[?wait=SECONDS]`; all ranks must call this.

    If a rank has not called MPI_Init after that time, the job ends with exit code 2 (`transports.mpi.opening`).

    Raises:
        RendezvousError: there is no library, or the launcher started every rank as a world of its own.
    """
    wait = url.seconds("wait", WAIT_S)
    url.check_all_taken()
    with init_timeout(wait, os.environ):
        world = load_library().COMM_WORLD
        check_launcher(world.size, os.environ)

        from transports.mpi.transport import MpiTransport

        transport = await MpiTransport.open(world)
    unlink_segments(own_maps())
    return transport


def check_library(version: str, environ: Mapping[str, str]) -> None:
    """Refuse a library that cannot work with the launcher, before the library is initialised.

    MPICH crashes under Open MPI's mpirun; Open MPI (from 5.0) makes worlds of one rank under a launcher with only PMI.

    Args:
        version: the library's version string.
    Raises:
        RendezvousError: they do not belong together; the error names both.
    """
    supported = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"} & environ.keys()
    count = environ.get("OMPI_COMM_WORLD_SIZE") or environ.get("PMI_SIZE")
    if version.startswith("MPICH") and "OMPI_COMM_WORLD_SIZE" in environ:
        raise RendezvousError(f"Open MPI's mpirun started {count} ranks, but the library is MPICH's: {_REMEDY}")
    if version.startswith("Open MPI") and "PMI_SIZE" in environ and not supported:
        raise RendezvousError(f"a launcher that supports PMI started {count} ranks, but Open MPI does not: {_REMEDY}")


def required_environment(version: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that the library needs to start; the user's own settings are kept.

    Slurm's PMI-2 accepts values of at most 1,023 characters. MPICH's UCX module publishes its address in lines of up to
    1,081 characters (fewer if the address has many zeros); MPI_Init then aborts or hangs. Over libfabric (`ofi`), which
    supports InfiniBand too, the address has 16 bytes.

    Args:
        version: the library's version string.
    """
    netmods = re.search(r"^MPICH Device:.*\bch4:(ucx[ ,]ofi|ofi[ ,]ucx)", version, re.MULTILINE)
    name = "MPIR_CVAR_CH4_NETMOD"
    return {name: "ofi"} if netmods and environ.get("SLURM_MPI_TYPE") == "pmi2" and name not in environ else {}


def check_launcher(world_size: int, environ: Mapping[str, str]) -> None:
    """Compare the size of MPI's world with the number of ranks that the launcher started.

    Raises:
        RendezvousError: they differ; the error gives both numbers and the remedy.
    """
    name, count = launched_size(environ) or ("", str(world_size))
    if int(count) != world_size:
        raise RendezvousError(
            f"{_COUNTS[name]} started {count} ranks, but MPI sees a world of {world_size} "
            f"({name}={count}, world size: {world_size}): {_REMEDY}"
        )


def launched_size(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The launcher's variable for the number of ranks, and its value; None without a launcher."""
    return next(((name, environ[name]) for name in _COUNTS if environ.get(name, "").isdecimal()), None)


@contextmanager
def init_timeout(seconds: float, environ: Mapping[str, str]) -> Iterator[None]:
    """End the process with exit code 2 and print the reason if the block takes longer.

    Args:
        seconds: the limit of rank 0; other ranks wait `GRACE_S` seconds longer.
    """
    rank = next((environ[name] for name in RANKS if name in environ), "0")
    timer = threading.Timer(seconds + GRACE_S * (rank != "0"), _exit, [_reason(seconds, rank, environ)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _reason(seconds: float, rank: str, environ: Mapping[str, str]) -> str:
    _, count = launched_size(environ) or ("", "an unknown number of")
    missing_ranks = "at least one of the others" if rank == "0" else "rank 0, and perhaps another rank,"
    return (
        f"rank {rank} waited {seconds:g} s for all ranks to open MPI (ranks: {count}); {missing_ranks} has not called "
        "MPI_Init, and MPI does not say which: look on each node for one that has not started, is stopped or still "
        f"imports (ps -C python -o pid,stat,etime,args), or wait longer: --transport 'mpi://?wait={2 * seconds:g}'"
    )


def _exit(reason: str) -> None:
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(USAGE_EXIT_CODE)


def own_maps() -> str:
    """The listing of this process's memory mappings; empty if the system has none."""
    return MAPS.read_text() if MAPS.exists() else ""


def unlink_segments(maps: str) -> None:
    """Remove the names of the MPICH segments in this listing of mappings; call it when every rank has mapped them."""
    for name in set(_SEGMENT.findall(maps)):
        with suppress(OSError):  # another rank has removed it
            Path(name).unlink()
