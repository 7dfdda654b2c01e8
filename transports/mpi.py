"""`mpi://`: the ranks that mpirun or srun started. The one rule: MPI is loaded here, when asked for, and nowhere else.

What the transport itself does is in `transports._mpi`, which may import MPI at its top because this file has made sure
that it can be, with the thread level it needs.
"""

import os
from types import ModuleType
from urllib.parse import SplitResult

from transports._contract import Transport
from transports._errors import RendezvousError
from transports._launcher import check_launcher, check_library, settings
from transports._segments import MAPS, give_up_names
from transports._shape import check_nothing_else


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
        raise RendezvousError(f"no MPI library could be loaded ({reason}); `pip install mpi4py mpich`") from error
    if not MPI.Is_initialized():
        version = MPI.Get_library_version()
        check_library(version, os.environ)
        os.environ.update(settings(version, os.environ))
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
        raise RendezvousError("MPI may only be called from the thread that loaded it; open the transport there")
    return MPI


async def open_url(parts: SplitResult) -> Transport:
    """Open this rank's end of MPI's world; all ranks of it must do so.

    Raises:
        RendezvousError: no library, or a launcher that started worlds of one rank.
    """
    check_nothing_else(parts)
    world = load_library().COMM_WORLD
    check_launcher(world.size, os.environ)

    from transports._mpi import MpiTransport

    transport = await MpiTransport.open(world)
    if MAPS.exists():
        give_up_names(MAPS.read_text())
    return transport
