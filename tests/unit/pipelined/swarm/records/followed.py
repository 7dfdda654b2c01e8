"""A view of a swarm that follows its directory in one process, and the records that a test puts there."""

import asyncio

from pipelined.aio.clock import VirtualClock
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.registration import Registration
from pipelined.swarm.records.members import PEERS, PeerRecord, Phase
from pipelined.swarm.records.view import SwarmView
from transports.rpc.virtual.network import VirtualNetwork


async def followed(story, stages=None):
    """Let a view follow while the story changes the directory."""
    network, clock = VirtualNetwork(), VirtualClock()
    async with asyncio.TaskGroup() as tasks, network.endpoint("directory") as end, network.endpoint("one") as one:
        serving = tasks.create_task(serve_directory(end, clock))
        directory = EmbeddedDirectory(one, end.address, clock)
        view = SwarmView(directory, clock, stages)
        following = tasks.create_task(view.follow())
        await story(view, directory)
        following.cancel()
        serving.cancel()


async def put(directory, lease, name, stage):
    """A peer's record under its name, as a process of that name puts it; returns where it can move it from."""
    place = Registration(directory, PEERS + name, lease, None)
    await place.put(PeerRecord(name, f"virtual://{name}", lease.number, stage, Phase.SERVING, "model"))
    return place
