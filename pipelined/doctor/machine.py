"""What one process may use of the machine it runs on. Read from the kernel; nothing is tried, and nothing imported.

The rule: what cannot be found out is None, and never a guess.
"""

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Machine:
    """One process's view of its machine; bytes and counts.

    Args:
        cores: this process may run on.
        quota: cores' worth of time that its control group gets, if that is limited.
        memory: of the machine, or of the control group where that is less.
        available: of it, now.
        shared: bytes free where ranks of a machine share memory (/dev/shm).
        threads: what the environment says of how many threads a rank computes with; 0 where it says nothing.
        ptrace_scope: Yama's; above 0 a process may not read another's memory, as MPI likes to.
        privileged: whether it may all the same.
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
        """As JSON can hold it."""
        return asdict(self)


def look(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Look at this machine.

    Args:
        root: where its /proc, /sys and /dev are.
    """
    limit, sizes = number(root / "sys/fs/cgroup/memory.max"), _meminfo(root / "proc/meminfo")
    total = min((size for size in (limit, sizes.get("MemTotal")) if size is not None), default=None)
    used = number(root / "sys/fs/cgroup/memory.current") if limit is not None and limit == total else None
    free = [sizes.get("MemAvailable"), None if used is None or limit is None else limit - used]
    return Machine(
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


def number(path: Path) -> int | None:
    """The number that a file of the kernel's holds, if it is there and holds one."""
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
