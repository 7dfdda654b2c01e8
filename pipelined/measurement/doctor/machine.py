"""The cores, memory and settings of the machine that one process may use, read from the kernel.

A value that the kernel does not give is None.
"""

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelined.actors.device.host_memory import host_memory, read_number, read_text
from transports.shm.cores import own_cores

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Host:
    """One process's view of its machine; bytes and counts.

    Args:
        cores: the cores that this process may run on.
        quota: the limit of its control group, in cores' worth of time; None without a limit.
        memory: bytes of the machine, or of the control group if that is less.
        available: bytes of it that are free now.
        shared: free bytes of shared memory (/dev/shm).
        threads: computing threads of a rank, as set in the environment; 0 if not set.
        ptrace_scope: the kernel's Yama setting; above 0 a process may not read another's memory, which MPI does.
        privileged: whether this process runs as root, which may read it in any case.
    """

    host: str
    python: str
    system: str
    cores: int
    quota: float | None
    memory: int | None
    available: int | None
    shared: int | None
    threads: int
    ptrace_scope: int | None
    privileged: bool

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


def examine_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Host:
    """Examine this machine.

    Args:
        root: the directory with its /proc, /sys and /dev.
    """
    total, available = host_memory(root)
    return Host(
        host=socket.gethostname(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(own_cores()),
        quota=_quota(root / "sys/fs/cgroup/cpu.max"),
        memory=total,
        available=available,
        shared=_free(root / "dev/shm"),
        threads=next((int(environ[name]) for name in THREADS if environ.get(name, "").isdecimal()), 0),
        ptrace_scope=read_number(root / "proc/sys/kernel/yama/ptrace_scope"),
        privileged=os.geteuid() == 0,
    )


def _quota(path: Path) -> float | None:
    match (read_text(path) or "").split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
