"""Which run may save into a directory: a lock that the kernel releases when the last process of that run ends.

    DIR/lock    {"run": NAME, "host": HOST, "pid": PID}, under flock(2) in shared mode by every process of the run

The first process locks the file alone, writes the name of its run, and keeps the lock in shared mode. A later process
of the same run shares the lock; a process of another run is refused. A file that a dead run left is not locked.
"""

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pipelined.checkpoints.checkpoint import CheckpointError

LOCK = "lock"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""No place for the line that names the run, which is no want of locks."""
TRIES, PAUSE_S = 200, 0.01
"""A process holds the lock alone only while it writes one line; seconds between two looks."""


@dataclass(frozen=True)
class Claim(AbstractContextManager):
    """The right of a run to save into a directory; ends with `release`, or with the process.

    Args:
        directory: of checkpoints.
        missing: why the file system gives no lock; "": the lock is held.
    """

    directory: Path
    missing: str
    descriptor: int

    @property
    def held(self) -> bool:
        """Whether no other run can save there, so that what lies there unfinished is a dead run's."""
        return not self.missing

    @property
    def warning(self) -> str:
        """What the user must know where the file system gives no lock; "" where the lock is held."""
        if self.held:
            return ""
        fact = f"{self.directory} cannot be locked ({self.missing}), so a second run that saves there is not kept out"
        return f"{fact}; give every run its own directory, and remove *.part of dead runs by hand"

    def release(self) -> None:
        """Let other runs save there; once."""
        os.close(self.descriptor)

    def __exit__(self, *exc: object) -> None:
        self.release()


def claim(directory: str | Path, run: str) -> Claim:
    """Claim a directory for a run, and make it if it is not there. Blocks for 2 s at most.

    Args:
        run: a name that no other run has; all processes of one run give the same.
    Raises:
        CheckpointError: another run that still lives saves there, or the directory cannot be written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CheckpointError(f"cannot save into {directory} ({error}); name another directory") from error
    try:
        return Claim(directory, _share(descriptor, directory, run), descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _share(descriptor: int, directory: Path, run: str) -> str:
    """Lock the file in shared mode for this run; why the file system cannot, or ""."""
    holder = {"run": run, "host": socket.gethostname(), "pid": os.getpid()}
    try:
        for _ in range(TRIES):
            if _locked(descriptor, fcntl.LOCK_EX):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(holder).encode(), 0)
            if _locked(descriptor, fcntl.LOCK_SH):
                return _refuse_another(descriptor, directory, run)
            time.sleep(PAUSE_S)
    except OSError as error:
        if error.errno in FULL:
            raise CheckpointError(f"cannot save into {directory} ({error}); free or choose another place") from error
        return error.strerror or str(error)
    raise CheckpointError(f"{directory / LOCK} stays locked ({TRIES * PAUSE_S:g} s); end the process that holds it")


def _locked(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_another(descriptor: int, directory: Path, run: str) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        named, where = holder["run"], f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        named, where = None, f"{directory / LOCK} does not say which"
    if named != run:
        fact = f"{directory} is in use by another run ({where})"
        raise CheckpointError(f"{fact}; wait for its end, or give --checkpoint another directory")
    return ""
