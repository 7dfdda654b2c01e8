"""The directory of a swarm, or of another system: its members and records, with a journal; see docs/directory.md."""

from pipelined.directory.api import (
    Change,
    Conflict,
    CutOff,
    Directory,
    DirectoryRefusal,
    Entry,
    FellBehind,
    Full,
    Lease,
    LeaseLost,
    Prefixes,
    View,
    WrongKey,
)
from pipelined.directory.client import EmbeddedDirectory
from pipelined.directory.disk import JournalError
from pipelined.directory.limits import DirectoryLimits
from pipelined.directory.registry import open_directory
from pipelined.directory.server import serve_directory

__all__ = [
    "Change",
    "Conflict",
    "CutOff",
    "Directory",
    "DirectoryLimits",
    "DirectoryRefusal",
    "EmbeddedDirectory",
    "Entry",
    "FellBehind",
    "Full",
    "JournalError",
    "Lease",
    "LeaseLost",
    "Prefixes",
    "View",
    "WrongKey",
    "open_directory",
    "serve_directory",
]
