"""`mpi://`: the ranks that mpirun or srun started. The one rule: MPI is loaded here, when asked for, and nowhere else.

What the transport itself does is in `transports.mpi.transport`, which may import MPI at its top because this file has
made sure that it can be, with the thread level it needs.
"""

import ctypes
import os
from types import ModuleType
from urllib.parse import SplitResult

from transports.base import Transport
from transports.emulation.options import check_nothing_else, read_wait
from transports.errors import RendezvousError
from transports.mpi.launcher import check_launcher, check_library, settings
from transports.mpi.segments import MAPS, give_up_names
from transports.mpi.start import WAIT, limited


def load_library() -> ModuleType:
    """mpi4py's MPI module, initialised for calls from this thread alone (or more, where somebody else did it).

    Raises:
        RendezvousError: mpi4py or an MPI library is missing, it is not the launcher's, or this is a thread that may not
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
        os.environ.update(settings(version, os.environ))
        _initialise(MPI)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
        raise RendezvousError("MPI may only be called from the thread that loaded it; open the transport there")
    return MPI


def _initialise(MPI: ModuleType) -> None:
    """Call `MPI_Init_thread` by ctypes, which lets other threads run meanwhile; mpi4py's own call does not.

    Then set what mpi4py sets after its own: errors of the two first communicators are raised here.
    """
    init = getattr(ctypes.CDLL(MPI.__file__), "MPI_Init_thread", None)
    if init is None:  # not exported by this build of mpi4py
        MPI.Init_thread(MPI.THREAD_FUNNELED)
        return
    if error := init(None, None, ctypes.c_int(MPI.THREAD_FUNNELED), ctypes.byref(ctypes.c_int())):
        raise RendezvousError(f"MPI_Init_thread failed (error code: {error}); see what the library printed above")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)


async def open_url(parts: SplitResult) -> Transport:
    """Open this rank's end of MPI's world, `mpi://[?wait=SECONDS]`; all ranks of it must do so.

    If a rank has not come after that time, the job ends with exit code 2 (`transports.mpi.start`).

    Raises:
        RendezvousError: no library, or a launcher that started worlds of one rank.
    """
    check_nothing_else(parts, "wait")
    with limited(read_wait("mpi://", parts.query, WAIT), os.environ):
        world = load_library().COMM_WORLD
        check_launcher(world.size, os.environ)

        from transports.mpi.transport import MpiTransport

        transport = await MpiTransport.open(world)
    if MAPS.exists():
        give_up_names(MAPS.read_text())
    return transport
