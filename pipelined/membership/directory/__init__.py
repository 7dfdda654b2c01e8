"""The directory of members: a database of records with leases, its clients and its server; see docs/directory.md."""

from pipelined.membership.directory.api import (
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
    Snapshot,
    WrongKey,
)
from pipelined.membership.directory.client.embedded import EmbeddedDirectory
from pipelined.membership.directory.client.registry import open_directory
from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.membership.directory.server.disk import JournalError
from pipelined.membership.directory.server.serve import serve_directory

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
    "Snapshot",
    "WrongKey",
    "open_directory",
    "serve_directory",
]
