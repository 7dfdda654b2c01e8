"""Where the ranks meet: at rank 0's own port, or where the launcher's store says."""

import asyncio
import socket

import pytest

from transports import RendezvousError
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.meeting_points import LOOPBACK, AgentStore, MasterPort, NodeFile, meeting_point


def config(rank, world_size, **changes):
    return TcpConfig(**{"rank": rank, "world_size": world_size, "host": LOOPBACK, "port": 0, **changes})


@pytest.fixture
def store():
    """A store as torchrun's agent holds it."""
    distributed = pytest.importorskip("torch.distributed")
    return distributed.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)


def test_the_launcher_decides_which_it_is():
    assert isinstance(meeting_point(config(0, 2)), MasterPort)
    assert isinstance(meeting_point(config(0, 2, store=True)), AgentStore)
    assert isinstance(meeting_point(config(0, 2, store=True, one_machine=True)), NodeFile)


async def test_on_one_machine_the_ranks_meet_on_loopback_whatever_the_master_is_called():
    assert (await MasterPort(config(0, 2, host="node7.example", port=9, one_machine=True)).find()) == [(LOOPBACK, 9)]


def test_a_host_without_an_address_is_named():
    with pytest.raises(RendezvousError, match=r"no address for the host 'no\.such\.host\.invalid'.*MASTER_ADDR"):
        asyncio.run(MasterPort(config(1, 2, host="no.such.host.invalid")).find())


@pytest.mark.parametrize("one_machine", [True, False])
async def test_rank_0_publishes_in_the_store_where_the_others_find_it(store, one_machine):
    at = {"port": store.port, "store": True, "one_machine": one_machine}
    there = AgentStore(config(1, 2, **at))
    assert await there.find() == []
    with await AgentStore(config(0, 2, **at)).listen() as listener:
        assert await there.find() == [listener.getsockname()]
    assert await AgentStore(config(1, 2, run="none/1", **at)).find() == []


@pytest.mark.parametrize("published", [b"", b"nonsense", b"\xff\xfe 5", b"127.0.0.1 many"])
def test_a_store_without_the_address_is_an_error(store, published):
    store.set("pipelined/none/0/rank 0", published)
    with pytest.raises(RendezvousError, match="holds no address"):
        asyncio.run(AgentStore(config(1, 2, port=store.port, store=True)).find())


def test_the_error_for_an_unreachable_store_has_its_address(monkeypatch):
    pytest.importorskip("torch.distributed")
    monkeypatch.setattr("transports.tcp.join.meeting_points.STORE_S", 0.2)
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        port = unused.getsockname()[1]
        with pytest.raises(RendezvousError, match=f"store at {LOOPBACK}:{port} does not answer"):
            asyncio.run(AgentStore(config(1, 2, port=port, store=True)).find())
