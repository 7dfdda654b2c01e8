"""The cores, memory and settings of the machine that one process may use, read from the kernel.

A value that the kernel does not give is None.
"""

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError

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
        ptrace_scope: the kernel's Yama setting; above 0 a process may not read another one's memory, which MPI uses.
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

    def plain(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


def examine_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Host:
    """Examine this machine.

    Args:
        root: the directory with its /proc, /sys and /dev.
    """
    limit, sizes = number(root / "sys/fs/cgroup/memory.max"), _meminfo(root / "proc/meminfo")
    total = min((size for size in (limit, sizes.get("MemTotal")) if size is not None), default=None)
    used = number(root / "sys/fs/cgroup/memory.current") if limit is not None and limit == total else None
    free = [sizes.get("MemAvailable"), None if used is None or limit is None else limit - used]
    return Host(
        host=socket.gethostname(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)),
        quota=_quota(root / "sys/fs/cgroup/cpu.max"),
        memory=total,
        available=min((size for size in free if size is not None), default=None),
        shared=_free(root / "dev/shm"),
        threads=next((int(environ[name]) for name in THREADS if environ.get(name, "").isdecimal()), 0),
        ptrace_scope=number(root / "proc/sys/kernel/yama/ptrace_scope"),
        privileged=os.geteuid() == 0,
    )


def free_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may still use, within the limit of its control group.

    Raises:
        UsageError: the kernel does not say.
    """
    found = examine_machine({}, root).available
    if found is None:
        raise UsageError("this machine does not say how much memory is free; give --ram")
    return found


class PeakMemory:
    """The most bytes by which the memory of this process has exceeded what it had when this was made.

    It includes what Python and torch load meanwhile. Where the kernel does not let a process reset its peak, an earlier
    one counts, too.
    """

    def __init__(self, root: Path = Path("/")):
        self._status = root / "proc/self/status"
        with suppress(OSError):
            (root / "proc/self/clear_refs").write_text("5")  # the peak is what is used now
        self._start = _meminfo(self._status).get("VmRSS")

    @property
    def grown(self) -> int | None:
        """Bytes; None: the kernel does not say."""
        peak = _meminfo(self._status).get("VmHWM")
        return None if peak is None or self._start is None else max(0, peak - self._start)


def number(path: Path) -> int | None:
    """The number in a file of the kernel; None if there is no such file, or no number in it."""
    text = _text(path)
    return int(text) if text is not None and text.strip().isdecimal() else None


def _quota(path: Path) -> float | None:
    match (_text(path) or "").split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def _meminfo(path: Path) -> dict[str, int]:
    rows = [line.replace(":", " ").split() for line in (_text(path) or "").splitlines()]
    return {row[0]: int(row[1]) << 10 for row in rows if len(row) == 3 and row[1].isdecimal()}


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
