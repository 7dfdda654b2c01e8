"""A limit on opening MPI: `MPI_Init` and what follows block in C until every rank has come, and cannot be cancelled.

So a timer ends the process with the code of bad input, and the launcher then ends the other ranks. Rank 0's timer is
the first, so that its message is the only one; where rank 0 itself is missing, the others print theirs. Knows no MPI.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from transports.mpi.launcher import size_by

WAIT = 300.0
GRACE = 5.0
"""Seconds by which the other ranks wait longer than rank 0, so that rank 0 alone reports."""
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
USAGE = 2


@contextmanager
def limited(seconds: float, environ: Mapping[str, str]) -> Iterator[None]:
    """End the process with code 2, and print why, where the block takes longer.

    Args:
        seconds: that rank 0 waits.
    """
    rank = next((environ[name] for name in RANKS if name in environ), "0")
    timer = threading.Timer(seconds + GRACE * (rank != "0"), _exit, [_reason(seconds, rank, environ)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _reason(seconds: float, rank: str, environ: Mapping[str, str]) -> str:
    _, count = size_by(environ) or ("", "an unknown number of")
    late = "at least one of the others" if rank == "0" else "rank 0, and perhaps another rank,"
    return (
        f"rank {rank} waited {seconds:g} s for all ranks to open MPI (ranks: {count}); {late} has not come, and MPI "
        "does not say which: look on each node for one that has not started, is stopped or still imports "
        f"(ps -C python -o pid,stat,etime,args), or wait longer: --transport 'mpi://?wait={2 * seconds:g}'"
    )


def _exit(reason: str) -> None:
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(USAGE)
