"""The one place where it is decided who is a member and which step is committed."""

from pipelined.swarm.directory.contract import Change, Conflict, CutOff, Directory, Entry, Lease, LeaseLost, View

__all__ = ["Change", "Conflict", "CutOff", "Directory", "Entry", "Lease", "LeaseLost", "View"]
