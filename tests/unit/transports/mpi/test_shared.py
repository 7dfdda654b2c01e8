"""Memory shared over MPI: what an attempt to share leaves behind. How ranks share it is tested in tests/mpi."""

import asyncio
import os

import pytest

from tests.conformance.worlds import kill
from transports import PeerLost
from transports.local import world
from transports.mpi.shared import map_windows

FILES = "/proc/self/fd"
pytestmark = pytest.mark.skipif(not os.path.isdir(FILES), reason="no memory without a name here; Linux has it")


def shared_files():
    """The descriptors of shared memory; under a launcher those of a transport that an earlier test opened, too."""
    paths = [f"{FILES}/{name}" for name in os.listdir(FILES)]
    return {path for path in paths if os.path.lexists(path) and "memfd:pipelined" in os.readlink(path)}


async def gives_up(opening, peer):
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def loses_its_peer(opening, peer):
    kill(peer)
    with pytest.raises(PeerLost):
        await opening


@pytest.mark.parametrize("end", [gives_up, loses_its_peer])
async def test_a_rank_keeps_no_descriptor_if_its_peer_never_shares(end):
    here, peer = world(2)
    before = shared_files()
    opening = asyncio.ensure_future(map_windows(here, (0, 1), channel=3, nbytes=2 << 20))
    await asyncio.sleep(0)
    assert shared_files() - before
    await end(opening, peer)
    assert not shared_files() - before
