"""The main memory that this process may use, and what it has used, read from the kernel.

A control group may have less than the machine, and its outer groups less than itself. What the kernel does not say is
None.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pipelined.errors import UsageError

MOUNT = "sys/fs/cgroup"
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The files with a group's limit and use, and in memory.stat the bytes of files that the kernel drops when asked."""


def host_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Bytes of memory, and those of them that are free now: of the machine, or of a control group that has less.

    Args:
        root: the directory with its /proc and /sys.
    """
    sizes = meminfo(root / "proc/meminfo")
    bounds = [(sizes.get("MemTotal"), sizes.get("MemAvailable")), *_group_bounds(root)]
    total, free = ([size for size in column if size is not None] for column in zip(*bounds, strict=True))
    return min(total, default=None), min(free, default=None)


def free_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may still use, within the limits of its control groups.

    Raises:
        UsageError: the kernel does not say.
    """
    _, free = host_memory(root)
    if free is None:
        raise UsageError("this machine does not say how much memory is free; give --ram")
    return free


class PeakMemory:
    """The most bytes by which the memory of this process has exceeded what it had when this was made.

    It includes what Python and torch load meanwhile. Where the kernel does not let a process reset its peak, an earlier
    one counts, too.
    """

    def __init__(self, root: Path = Path("/")):
        self._status = root / "proc/self/status"
        with suppress(OSError):
            (root / "proc/self/clear_refs").write_text("5")  # the peak is what is used now
        self._start = meminfo(self._status).get("VmRSS")

    @property
    def grown(self) -> int | None:
        """Bytes; None: the kernel does not say."""
        peak = meminfo(self._status).get("VmHWM")
        return None if peak is None or self._start is None else max(0, peak - self._start)


def meminfo(path: Path) -> dict[str, int]:
    """Bytes by name, of a file of the kernel that has them in kB."""
    rows = [line.replace(":", " ").split() for line in (read_text(path) or "").splitlines()]
    return {row[0]: int(row[1]) << 10 for row in rows if len(row) == 3 and row[1].isdecimal()}


def read_number(path: Path) -> int | None:
    """The number in a file of the kernel; None if there is no such file, or no number in it."""
    digits = (read_text(path) or "").strip()
    return int(digits) if digits.isdecimal() else None


def read_text(path: Path) -> str | None:
    """The text of a file of the kernel; None if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return None


def _group_bounds(root: Path) -> Iterator[tuple[int | None, int | None]]:
    """The limit and the free bytes of each control group that this process is in."""
    for group, (limit_file, use_file, droppable) in _groups(root):
        limit = read_number(group / limit_file)
        in_use = read_number(group / use_file)
        if limit is not None:
            lines = [line.split() for line in (read_text(group / "memory.stat") or "").splitlines()]
            dropped = next((int(line[1]) for line in lines if line[0] == droppable), 0)
            yield limit, None if in_use is None else max(0, limit - in_use + dropped)


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The directories of this process's groups, from its own to the outermost, with the names of their files.

    In a container the path of /proc/self/cgroup may be that of the host, so that its outermost group alone is there.
    """
    paths = {"": PurePosixPath("/"), "memory": PurePosixPath("/")}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, kinds, path = line.split(":", 2)
        paths |= {kind: PurePosixPath(path) for kind in kinds.split(",") if kind in paths}
    for kind, mounts, names in (("", ("", "unified"), VERSION_2), ("memory", ("memory",), VERSION_1)):
        for group in (paths[kind], *paths[kind].parents):
            for mount in mounts:
                yield root / MOUNT / mount / group.relative_to("/"), names
