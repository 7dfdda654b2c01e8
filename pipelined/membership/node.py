"""A process of a system: its name, and what it reaches the others by."""

from dataclasses import dataclass

from pipelined.aio.clock import Clock
from pipelined.membership.directory import Directory
from transports.rpc import Endpoint


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of every process of the system.

    Args:
        name: unique among the processes of its role.
        endpoint: sends and serves its requests.
        directory: this process's client of the directory.
    """

    name: str
    endpoint: Endpoint
    directory: Directory
    clock: Clock
