"""The claim of a run on a directory of checkpoints: a file lock that ends with the last process of that run.

    DIR/lock    {"run": NAME, "host": HOST, "pid": PID}, under flock(2) in shared mode by every process of the run

The first process locks the file exclusively, writes the name of its run, and keeps the lock in shared mode. A later
process of the same run shares the lock; a process of another run is refused. The kernel releases the locks of dead
processes, so the file of a dead run is not locked.
"""

import asyncio
import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipelined.actors.agree import agree
from pipelined.state.checkpoints.records import CheckpointError
from transports import Transport

LOCK = "lock"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, when the line with the run's name is written; locks may still work there."""
TRIES, PAUSE_S = 200, 0.01
"""Attempts, and seconds between two: a process holds the exclusive lock only while it writes one line."""


@dataclass(frozen=True)
class Claim(AbstractContextManager):
    """The right of a run to save into a directory; ends with `release`, or with the process.

    Args:
        directory: the directory of checkpoints.
        error: the reason why the file system gives no lock; "" if the lock is held.
    """

    directory: Path
    error: str
    descriptor: int

    @property
    def is_held(self) -> bool:
        """Whether no other run can save there; then unfinished saves there belong to dead runs."""
        return not self.error

    @property
    def warning(self) -> str:
        """The warning for the user if the file system gives no lock; "" if the lock is held."""
        if self.is_held:
            return ""
        fact = f"{self.directory} cannot be locked ({self.error}), so a second run that saves there is not kept out"
        return f"{fact}; give every run its own directory, and remove *.part of dead runs by hand"

    def release(self) -> None:
        """Release the lock, so that other runs can save there; call it at most once."""
        os.close(self.descriptor)

    def __exit__(self, *exc: object) -> None:
        self.release()


def claim(directory: str | Path, run: str) -> Claim:
    """Claim a directory for a run; create the directory if it does not exist. Blocks for at most 2 s.

    Args:
        run: a name that no other run has; equal in all processes of the run.
    Raises:
        CheckpointError: another live run saves there, or the directory cannot be written.
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


@asynccontextmanager
async def claimed(transport: Transport, directory: Path | None, warn: Callable[[str], None]) -> AsyncIterator[bool]:
    """Hold a directory of checkpoints for this job inside the `async with` block; every rank calls this.

    Args:
        directory: None: nothing is saved, so nothing is claimed.
        warn: called on rank 0 if the file system gives no lock.
    Yields: on rank 0 whether no other run can save there.
    Raises:
        CheckpointError: on every rank: another live run saves there, or the directory cannot be written.
    """

    async def claim_on_rank_0() -> Claim | None:
        if directory is None or transport.rank:
            return None
        return await asyncio.to_thread(claim, directory, secrets.token_hex(8))

    rank_claim = await agree(transport, "claim", claim_on_rank_0())
    with rank_claim or nullcontext():
        if rank_claim and rank_claim.warning:
            warn(rank_claim.warning)
        yield bool(rank_claim and rank_claim.is_held)


def _share(descriptor: int, directory: Path, run: str) -> str:
    """Lock the file in shared mode for this run. Returns "", or the reason why the file system gives no lock."""
    holder = {"run": run, "host": socket.gethostname(), "pid": os.getpid()}
    try:
        for _ in range(TRIES):
            if _try_lock(descriptor, fcntl.LOCK_EX):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(holder).encode(), 0)
            if _try_lock(descriptor, fcntl.LOCK_SH):
                return _refuse_another(descriptor, directory, run)
            time.sleep(PAUSE_S)
    except OSError as error:
        if error.errno in FULL:
            raise CheckpointError(f"cannot save into {directory} ({error}); free or choose another place") from error
        return error.strerror or str(error)
    raise CheckpointError(f"{directory / LOCK} stays locked ({TRIES * PAUSE_S:g} s); end the process that holds it")


def _try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_another(descriptor: int, directory: Path, run: str) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        holding_run = holder["run"]
        holding_process = f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        holding_run = None
        holding_process = f"{directory / LOCK} does not say which"
    if holding_run != run:
        fact = f"{directory} is in use by another run ({holding_process})"
        raise CheckpointError(f"{fact}; wait for its end, or save into another directory")
    return ""
