"""The end of a whole job by one of its ranks, also before MPI_Init. Imports nothing that takes time.

Theory of operation. The launcher gives each rank a socket to its process manager, and sets PMI_FD to its number. Until
a rank has sent `init` there, the manager treats its exit as that of a program without MPI, whatever the code, and lets
the other ranks wait in MPI_Init. `abort` ends them all, wherever they are, within milliseconds, on every node. This is
version 1 of PMI, one line of text a request; Slurm's `pmi2` accepts it, too. mpirun then exits with the code of the
abort, srun with that of the ranks that it killed. After MPI_Init the library uses the socket itself: MPI_Abort.

Open MPI's mpirun and torchrun end all ranks when one exits with a code other than 0, and need no request. The exception
is a process that has initialised MPI: its exit finalizes MPI, which waits for the other ranks, and they wait for it.
"""

import atexit
import os
import re
import select
import stat
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

SIZES = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"
PROGRAM = re.compile(r"(apps|pipelined)(\.[\w.]+)?|.*/pipelined(-\w+)?")
"""What starts a program of ours: its module, or its command."""
REPLY_S = 1.0
"""Seconds for the process manager, a process of this machine, to reply to `init`."""


def end_job(code: int, environ: Mapping[str, str]) -> bool:
    """End all ranks of this job. Returns whether that was requested; this process may be killed before it returns.

    Args:
        code: the exit code of the job.
        environ: usually `os.environ`.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized():
        if not MPI.Is_finalized():
            MPI.COMM_WORLD.Abort(code)
        return not MPI.Is_finalized()
    manager = _manager(environ)
    if manager is None:
        return False
    try:
        os.write(manager, b"cmd=init pmi_version=1 pmi_subversion=1\n")
        if not select.select([manager], [], [], REPLY_S)[0]:
            return False
        os.read(manager, 1024)
        os.write(manager, f"cmd=abort exitcode={code}\n".encode())
    except OSError:  # the process manager has gone, and ends the ranks itself
        return False
    return True


def _manager(environ: Mapping[str, str]) -> int | None:
    """The descriptor of the process manager's socket; None if it has gone, or a file has its number by now."""
    try:
        descriptor = int(environ.get("PMI_FD", ""))
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except (ValueError, OSError):
        return None


def interrupt_quietly(command: Sequence[str]) -> None:
    """If this command runs a program of ours, let Ctrl-C print no traceback, also while the program is being imported.

    Args:
        command: usually `sys.orig_argv`.
    """
    if not PROGRAM.fullmatch(_program_of(command)):
        return
    earlier_hook = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            earlier_hook(kind, error, trace)

    sys.excepthook = report


def _program_of(command: Sequence[str]) -> str:
    """The module or the file that a command of Python runs, not what that is given; "" if it runs neither."""
    previous_word = ""
    for word in command[1:]:
        if re.fullmatch("-[a-zA-Z]*m", previous_word) or not (word.startswith("-") or previous_word in ("-X", "-W")):
            return word
        previous_word = word
    return ""


def end_job_if_uncaught(environ: Mapping[str, str]) -> None:
    """If a launcher of MPI started several ranks, let an exception that nothing catches end all of them, with code 1.

    Python prints its traceback first. A process that is forked later ends itself alone.
    """
    if any(environ.get(name, "1") not in ("", "1") for name in SIZES):
        atexit.register(_end_if_uncaught, os.getpid())


def forget_uncaught() -> None:
    """An exception that nothing catches has ended all ranks already, or will."""
    atexit.unregister(_end_if_uncaught)


def _end_if_uncaught(owner: int) -> None:
    error = getattr(sys, "last_value", None)
    if error is not None and os.getpid() == owner:
        end_job(130 if isinstance(error, KeyboardInterrupt) else 1, os.environ)
