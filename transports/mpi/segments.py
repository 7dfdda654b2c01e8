"""Shared memory that a killed job would leave behind. The one rule: a name that nobody needs is given up early.

MPICH's ranks of a node share `/dev/shm/mpich_shm_*`, which they attach in MPI_Init and whose name is removed in
MPI_Finalize; a job that is killed would leave it until the machine restarts. Memory without a name lives for as long as
a process maps it, so the name can go as soon as all ranks have attached.
"""

import re
from contextlib import suppress
from pathlib import Path

MAPS = Path("/proc/self/maps")
_SEGMENT = re.compile(r"(?<=\s)/dev/shm/mpich_shm_\w+$", re.MULTILINE)


def give_up_names(maps: str) -> None:
    """Remove the names of MPICH's segments in a listing of this process's memory, once every rank has attached."""
    for name in set(_SEGMENT.findall(maps)):
        with suppress(OSError):  # another rank was first
            Path(name).unlink()
