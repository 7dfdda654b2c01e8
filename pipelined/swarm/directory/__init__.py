"""The one place where it is decided who is a member and which step is committed; see docs/directory.md."""

from pipelined.swarm.directory.contract import (
    Change,
    Conflict,
    CutOff,
    Directory,
    Entry,
    FellBehind,
    Full,
    Lease,
    LeaseLost,
    Prefixes,
    View,
    WrongKey,
)
from pipelined.swarm.directory.disks import JournalError, MemoryDisk
from pipelined.swarm.directory.embedded import EmbeddedDirectory
from pipelined.swarm.directory.keeping import keep
from pipelined.swarm.directory.limits import Limits
from pipelined.swarm.directory.opening import open_directory
from pipelined.swarm.directory.server import serve_directory

__all__ = [
    "Change",
    "Conflict",
    "CutOff",
    "Directory",
    "EmbeddedDirectory",
    "Entry",
    "FellBehind",
    "Full",
    "JournalError",
    "Lease",
    "LeaseLost",
    "Limits",
    "MemoryDisk",
    "Prefixes",
    "View",
    "WrongKey",
    "keep",
    "open_directory",
    "serve_directory",
]
