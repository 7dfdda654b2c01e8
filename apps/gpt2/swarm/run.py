"""One rank of `--schedule swarm`: a peer, on some ranks a trainer beside it, and on rank 0 the directory and the end.

Peers and trainers are those of `python -m apps.swarm`. Over the job's transport the ranks exchange only the directory's
address and the end of training. A rank that fails ends the job, as its launcher would.
"""

import asyncio
import secrets
from contextlib import nullcontext, suppress
from functools import partial

from apps.common.lm.data.text import Text
from apps.gpt2.rank_directory import directory_of_rank0
from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.swarm.rank import ENDED, PEER, STOP, STOPPED, TRAINER, SwarmRank, prepare
from apps.gpt2.swarm.rank_zero import RankZero
from collectives.objects import gather_objects
from pipelined.actors.agree import agree
from pipelined.aio.tasks import cancel_and_wait
from pipelined.membership.connection import LocalMember
from pipelined.process.exit import print_to_stderr
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import say_nothing
from pipelined.process.stop_request import StopRequest
from pipelined.state.checkpoints.claim import Claim, claim
from pipelined.swarm.process.roles import Stopped, joined_trainer, serve, train
from transports import Nursery, Transport


async def train_swarm(transport: Transport, job: SwarmJob, launch: Launch, text: Text, stop: StopRequest) -> int:
    """Run one rank of a swarm's job to its end; returns its exit code."""
    rank = await agree(transport, "rank", asyncio.to_thread(prepare, transport, job, launch, text))
    run_id = secrets.token_hex(8)
    directory_claim = await agree(transport, "claim", asyncio.to_thread(_claim, rank, run_id))
    if transport.rank == 0:
        data = text.describe(job.tokens * job.config.steps, job.config.steps, job.settings.seq)
        print(f"{data}; device: {rank.executor.device}", flush=True)
    if directory_claim and directory_claim.warning:
        print_to_stderr(f"warning: {directory_claim.warning}")
    try:
        with directory_claim or nullcontext():
            publish = partial(rank.publish, run_id=run_id)
            async with directory_of_rank0(transport, job.config.listen, publish) as url:
                await _take_part(rank, url, stop)
                await gather_objects(transport, "gone", True)
    finally:
        rank.executor.close()
    return 0


def _claim(rank: SwarmRank, run_id: str) -> Claim | None:
    """On rank 0, claim the directory of checkpoints, if there is one, for this run."""
    path = rank.job.config.checkpoint
    return claim(path, run_id) if path is not None and rank.transport.rank == 0 else None


async def _take_part(rank: SwarmRank, url: str, request: StopRequest) -> None:
    """Run this rank's peer and, where it has one, its trainer, until rank 0 ends the training."""
    stop, stays = asyncio.Event(), asyncio.Event()
    async with Nursery() as tasks:
        address = rank.address(PEER, url)
        device = rank.executor.device
        peer = serve(address, lambda record: rank.session, rank.open_peer, device=device, stop=stays, say=say_nothing)
        serving = tasks.create_task(peer)
        stopping = tasks.create_task(request.set(stop))
        if rank.transport.rank == 0:
            address = rank.address(TRAINER, url)
            async with joined_trainer(address, rank.trainer_job, stop=stays, say=say_nothing) as trainer:
                await RankZero(rank, trainer, url, stop).run()
        else:
            await _follow(rank, url, stop)
        await cancel_and_wait(stopping, serving)


async def _follow(rank: SwarmRank, url: str, stop: asyncio.Event) -> None:
    """On other ranks: train until rank 0 or a signal requests a stop; serve until rank 0 has fetched the model."""
    transport = rank.transport
    async with Nursery() as tasks:
        stop_task = tasks.create_task(_set_on_message(stop, transport))
        training = tasks.create_task(_train(rank, url, stop))
        await stop.wait()
        await training
        await transport.send(0, STOPPED)
        await stop_task
    await transport.receive(0, ENDED)


async def _train(rank: SwarmRank, url: str, stop: asyncio.Event) -> None:
    """Run the trainer of another rank, if it has one; rank 0 reports the steps."""
    if rank.trains:
        address = rank.address(TRAINER, url)
        with suppress(Stopped):
            await train(address, rank.trainer_job, _leave, stop=stop, on_step=lambda event: None, say=say_nothing)


async def _leave(observer: LocalMember) -> None:
    """Rank 0 alone fetches the model."""


async def _set_on_message(stop: asyncio.Event, transport: Transport) -> None:
    """Set the event when rank 0 requests a stop."""
    await transport.receive(0, STOP)
    stop.set()
