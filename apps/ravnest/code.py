"""The digest of this code, by which processes of different releases refuse to train together. No torch."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import apps
import collectives
import pipelined
import transports
from apps.ravnest.flags.config import RavnestTask
from pipelined.errors import UsageError


def digest_of_sources(packages: Iterable[ModuleType]) -> str:
    """The blake2b of every source file of these packages, with its place in them.

    Cost: reads all of them: 5 MB for this project.
    """
    hasher = hashlib.blake2b(digest_size=32)
    for package in packages:
        root = Path(package.__file__ or "").parent
        for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
            source = path.read_bytes()
            hasher.update(f"{package.__name__}/{path.relative_to(root).as_posix()} {len(source)}\n".encode() + source)
    return hasher.hexdigest()


def own_code() -> str:
    """The digest of this process's code."""
    return digest_of_sources([apps, pipelined, collectives, transports])


def require_own_code(task: RavnestTask, own_digest: str) -> None:
    """Raises UsageError: the task is trained by other code than this process has."""
    if task.code and task.code != own_digest:
        fact = f"another release trains here (digest of the code here: {own_digest[:16]}, there: {task.code[:16]})"
        raise UsageError(f"{fact}; install that release, or take another coordinator")
