"""A roster is what the directory has, and nothing of what it had."""

import asyncio

from pipelined.clock import VirtualClock, run_virtual
from pipelined.swarm.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.membership import Roster
from pipelined.swarm.records import PEERS, Peer, Phase
from transports.endpoints.virtual import VirtualNetwork


async def followed(story):
    """Let a roster follow while the story changes the directory."""
    network, clock = VirtualNetwork(), VirtualClock()
    async with asyncio.TaskGroup() as tasks, network.endpoint("directory") as end, network.endpoint("one") as one:
        serving = tasks.create_task(serve_directory(end, clock))
        directory = EmbeddedDirectory(one, end.address, clock)
        roster = Roster(directory, clock)
        following = tasks.create_task(roster.follow())
        await story(roster, directory)
        following.cancel()
        serving.cancel()


def record(name):
    return Peer(name, f"virtual://{name}", 1, 0, Phase.SERVING, "model").pack()


def test_nothing_is_kept_of_peers_that_are_gone():
    """However many names there were: a peer that comes again has another, and a swarm runs for months."""

    async def story(roster, directory):
        await directory.transact({}, {f"{PEERS}stays": record("stays")})
        for number in range(100):
            lease = await directory.grant(60.0)
            revision = await directory.transact({}, {f"{PEERS}p{number}": record(f"p{number}")}, lease=lease)
            await roster.wait_for(lambda revision=revision: roster.revision >= revision)
            assert roster.announced[f"p{number}"] == revision
            await lease.revoke()
        await roster.wait_for(lambda: "p99" not in roster.peers)
        assert roster.peers.keys() == roster.announced.keys() == {"stays"}
        assert roster.announced["p0"] == 0 and "p0" not in roster.announced

    run_virtual(followed(story))


def test_what_cannot_be_read_is_named_until_it_is_gone():
    async def story(roster, directory):
        await directory.transact({}, {f"{PEERS}odd": b"no record"})
        await roster.wait_for(lambda: bool(roster.strange))
        assert "not a Peer" in roster.strange[f"{PEERS}odd"] and not roster.peers
        await directory.transact({}, {}, delete=[f"{PEERS}odd"])
        await roster.wait_for(lambda: not roster.strange)
        assert not roster.announced

    run_virtual(followed(story))
