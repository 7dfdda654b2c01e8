"""What every process of a swarm has: its address, what all share, and how its failures are reported. Imports torch."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.training import StageTraining
from transports.rpc import Endpoint


@dataclass(frozen=True)
class SwarmAddress:
    """Where a process finds its swarm, and where it listens.

    Args:
        url: of the directory.
        listen: URL of this process's endpoint; None: where this machine reaches the directory from.
        name: unique name of this process; "": HOST-PID.
    """

    url: str
    listen: str | None = None
    name: str = ""


@dataclass(frozen=True)
class SwarmSession:
    """What all processes of one swarm share, built from its task.

    Args:
        identity: of the model: a checkpoint with another one holds another model.
        text: digest of the data that is trained on; "": not known.
    """

    training: StageTraining
    rules: Rules
    identity: Mapping[str, Any]
    text: str


async def raise_when_failed(endpoint: Endpoint) -> None:
    await asyncio.shield(endpoint.failed)


def unreadable_head(why: str) -> str:
    """The message of a process that cannot read the directory's head and remembers no other."""
    fact = f"the directory's record 'head' cannot be read ({why})"
    return f"{fact}; waits for a trainer that remembers the step, or for one that is started with --resume"
