"""How a process enters its swarm: its endpoint, the directory, and the agreement on what is trained.

A process waits for the directory, reads there what is trained (the first trainer writes it), and refuses to take part
in a swarm that trains something else.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from apps.swarm.address import SwarmAddress
from apps.swarm.config import SWARM, Told, differences
from apps.swarm.waiting import MOMENT_S, telling
from pipelined.aio.clock import RealClock
from pipelined.checkpoints.claim import Claim, claim
from pipelined.directory import Conflict, Directory, open_directory
from pipelined.errors import UsageError
from pipelined.swarm.records import SUBJECT
from transports import TransportError
from transports.rpc import Endpoint, open_endpoint


@asynccontextmanager
async def entered(address: SwarmAddress) -> AsyncIterator[tuple[Endpoint, Directory]]:
    """An endpoint and the swarm's directory, which may start later: a request is repeated for 30 s, then raises CutOff.

    Raises:
        UsageError: the endpoint cannot listen there, or no other machine could connect to it.
    """
    async with await endpoint_at(address.listen_url) as endpoint:
        async with open_directory(address.url, endpoint, RealClock()) as directory:
            yield endpoint, directory


def as_member(address: SwarmAddress, endpoint: Endpoint, lease_s: float) -> Directory:
    """The directory for a member: a request without a reply for a lease's length raises CutOff."""
    return open_directory(address.url, endpoint, RealClock(), max(MOMENT_S, lease_s))


async def endpoint_at(url: str) -> Endpoint:
    """Open an endpoint at this URL. Raises UsageError: it cannot listen there."""
    try:
        return await open_endpoint(url)
    except (ValueError, TransportError) as error:
        raise UsageError(f"--listen {url}: {error}") from error


async def agree(directory: Directory, mine: Told, swarm: str = "") -> None:
    """Write what is trained to the directory, or check that the directory has the same.

    Args:
        mine: what this process trains.
        swarm: the swarm's name, if it begins here. Default: a random name.
    Raises:
        UsageError: the swarm trains something else.
    """
    try:
        await directory.transact({SUBJECT: 0}, {SUBJECT: mine.pack(), SWARM: (swarm or secrets.token_hex(8)).encode()})
    except Conflict as error:
        theirs = Told.unpack(error.found[SUBJECT].value)
        if theirs != mine:
            fact = f"this swarm trains something else ({differences(mine, theirs)})"
            raise UsageError(f"{fact}; give the same flags, or another coordinator") from error


async def claim_for(directory: Directory, path: Path) -> Claim:
    """Claim a directory of checkpoints for this swarm.

    Raises:
        UsageError: another swarm, or a pipeline, saves there.
    """
    entry = (await directory.read(SWARM)).entries.get(SWARM)
    return await asyncio.to_thread(claim, path, entry.value.decode(errors="replace") if entry else "")


async def what_is_trained(directory: Directory, address: SwarmAddress, say: Callable[[str], None]) -> Told:
    """Read what is trained from the directory; waits until the first trainer has written it."""
    async with telling(address.description, say):
        view = await directory.read(SUBJECT)
    if SUBJECT in view.entries:
        return Told.unpack(view.entries[SUBJECT].value)
    async with telling("the first trainer, which says what is trained", say):
        async for changes in directory.watch(SUBJECT, view.revision):
            for change in changes:
                if change.entry is not None:
                    return Told.unpack(change.entry.value)
    raise AssertionError("a watch does not end")
