"""The directory's record of what is trained: the first trainer writes it, and every later process reads it. No torch.

A process refuses to take part where something else is trained.
"""

import secrets
from typing import Protocol, Self

from pipelined.errors import UsageError
from pipelined.membership.addresses import described
from pipelined.membership.directory import Conflict, Directory, Entry
from pipelined.process.reporting.progress import Say, reported_wait

TASK = "subject"
"""Key in the directory: what is trained, in the program's own form. The stored name is older than this one."""
RUN = "swarm"
"""Key in the directory: the unique name of this run. Its processes claim directories of checkpoints under it."""


class TaskRecord(Protocol):
    """The task that is trained, as the directory keeps it."""

    def pack(self) -> bytes:
        """The directory's record."""

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read the directory's record. Raises UsageError: another release wrote it."""

    def differences(self, other: Self) -> str:
        """What differs in another task, in words."""


async def publish_task(
    directory: Directory, task: TaskRecord, run: str = "", settings: str = "flags", *, begun_key: str = ""
) -> Entry:
    """Write what is trained to the directory, or check that the directory has the same; returns what it has.

    Args:
        task: what this process trains.
        run: the run's name, which the directory must have. Default: its own, or a random name if the run begins here.
        settings: what the user gave to this process, for the message: flags or arguments.
        begun_key: a key that training writes when it begins. While it is missing, this task replaces another one.
    Raises:
        UsageError: the directory has another training, or another run of it.
    """
    records = {TASK: task.pack(), RUN: (run or secrets.token_hex(8)).encode()}
    expect = {TASK: 0}
    while True:
        try:
            return Entry(records[TASK], await directory.transact(expect, records))
        except Conflict as error:
            entries = error.entries
        entry = entries[TASK]
        if entry is None:
            expect = {TASK: 0}
            continue
        refusal = await _find_refusal(directory, task, task.unpack(entry.value), run, settings)
        if not refusal:
            return entry
        if not begun_key or entries.get(begun_key):
            raise UsageError(refusal)
        expect = {TASK: entry.revision, begun_key: 0}


async def _find_refusal(
    directory: Directory, task: TaskRecord, recorded_task: TaskRecord, run: str, settings: str
) -> str:
    """Why a process with this task and run does not take part; "": it does."""
    if recorded_task != task:
        fact = f"the directory has another training ({task.differences(recorded_task)})"
        return f"{fact}; give the same {settings}, or another directory"
    if run and (await directory.read(RUN)).entries[RUN].value != run.encode():
        fact = "the directory has another run of this training, and its nodes would not read what this one saved"
        return f"{fact}; start another directory, with a journal of its own"
    return ""


async def read_task(directory: Directory, url: str, say: Say) -> Entry:
    """Read the record of what is trained; waits until the first trainer has written it."""
    async with reported_wait(described(url), say):
        snapshot = await directory.read(TASK)
    if TASK in snapshot.entries:
        return snapshot.entries[TASK]
    async with reported_wait("the first trainer, which writes what is trained", say):
        async for changes in directory.watch(TASK, snapshot.revision):
            for change in changes:
                if change.entry is not None:
                    return change.entry
    raise AssertionError("a watch does not end")
