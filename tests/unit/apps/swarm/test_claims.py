"""What peers save into belongs to one swarm: peers of it share a directory, and another swarm's are refused."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from apps.common.flags.address import DirectoryAddress
from apps.swarm.commands import serve
from apps.swarm.config import SwarmTask, TrainingConfig
from apps.swarm.flags import Serve
from pipelined.aio.clock import RealClock
from pipelined.membership.directory import open_directory, serve_directory
from pipelined.membership.task_record import publish_task
from pipelined.state.checkpoints.checkpoint import CheckpointError
from pipelined.state.checkpoints.claim import claim
from pipelined.swarm.process.peer_process import claim_for
from transports import Nursery, new_event_loop
from transports.rpc import open_endpoint

SUBJECT = TrainingConfig(preset="gpt2-tiny", layers=1, d_model=8, heads=1, positions=8, seq=8, stages=1, tied=True)
TOLD = SwarmTask(SUBJECT, 256, "text")
LOOPBACK = "tcp://127.0.0.1:0"


def in_swarms(story, count=1):
    """Run a story with the address and the directory of each of so many swarms that have begun."""

    async def play():
        clock, directories, serving = RealClock(), [], []
        async with AsyncExitStack() as stack, Nursery() as tasks:
            for _ in range(count):
                server = await stack.enter_async_context(await open_endpoint(LOOPBACK))
                client = await stack.enter_async_context(await open_endpoint(LOOPBACK))
                serving.append(tasks.create_task(serve_directory(server, clock)))
                directory = await stack.enter_async_context(open_directory(server.address, client, clock))
                await publish_task(directory, TOLD)
                directories.append((server.address, directory))
            await story(*directories)
            for task in serving:
                task.cancel()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(play())


def test_peers_of_one_swarm_share_a_directory_and_another_swarm_is_refused(tmp_path: Path):
    async def story(mine, theirs):
        (_, one), (_, other) = mine, theirs
        with await claim_for(one, tmp_path), await claim_for(one, tmp_path):
            with pytest.raises(CheckpointError, match="in use by another run"):
                await claim_for(other, tmp_path)
        (await claim_for(other, tmp_path)).release()

    in_swarms(story, 2)


def test_a_peer_that_would_save_where_another_run_saves_is_refused_before_it_serves(tmp_path: Path):
    async def story(swarm):
        flags = Serve(address=DirectoryAddress(coordinator=swarm[0]), checkpoint=tmp_path)
        with claim(tmp_path, "a pipeline"), pytest.raises(CheckpointError, match="in use by another run"):
            await serve(flags, lambda text: None)

    in_swarms(story)
