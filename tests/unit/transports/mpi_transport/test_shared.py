"""Memory shared over MPI: what an attempt to share leaves behind. How ranks share it is tested in tests/mpi."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from transports import PeerLost
from transports.local import world
from transports.mpi.shared import MpiShared

FILES = "/proc/self/fd"
pytestmark = pytest.mark.skipif(not os.path.isdir(FILES), reason="no memory without a name here; Linux has it")


def shared_files():
    paths = [f"{FILES}/{name}" for name in os.listdir(FILES)]
    return [path for path in paths if os.path.lexists(path) and "memfd:pipelined" in os.readlink(path)]


async def gives_up(ready, peer):
    ready.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ready


async def loses_its_peer(ready, peer):
    peer.kill()
    with pytest.raises(PeerLost):
        await ready


@pytest.mark.parametrize("end", [gives_up, loses_its_peer])
async def test_a_rank_keeps_no_descriptor_if_its_peer_never_shares(end):
    here, peer = world(2)
    node_peers = SimpleNamespace(oversubscribed=False)
    memory = MpiShared(here, (0, 1), channel=3, nbytes=2 << 20, state=None, progress=None, node_peers=node_peers)
    ready = asyncio.ensure_future(memory.ready())
    await asyncio.sleep(0)
    assert shared_files()
    await end(ready, peer)
    assert not shared_files()
