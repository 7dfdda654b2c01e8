"""One rank of `--schedule swarm`: a peer, on some ranks a trainer beside it, and on rank 0 the directory and the end.

Over the job's transport the ranks exchange only the directory's address and the end of training. All else they read
from the directory, as a peer from outside does. A rank that fails ends the job, as its launcher would.
"""

import asyncio
import secrets
from contextlib import AsyncExitStack, nullcontext
from functools import partial

from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.swarm.lead import HALT, HALTED, OVER, Lead, cancelled, stop_requested
from apps.gpt2.swarm.rank import Rank, prepare
from apps.gpt2.swarm.rendezvous import meeting_point
from apps.gpt2.swarm.report import ActiveTime
from apps.lm.data.text import Text
from apps.swarm.address import SwarmAddress
from apps.swarm.joining import entered
from pipelined.actors.agree import agree, gather
from pipelined.aio.nursery import Nursery
from pipelined.checkpoints.claim import claim
from pipelined.process.exit import tell
from pipelined.process.launch import Launch
from pipelined.process.stop_request import StopRequest
from pipelined.swarm.view import SwarmView
from transports import Transport


async def train_swarm(transport: Transport, job: SwarmJob, launch: Launch, text: Text, stop: StopRequest) -> int:
    """Run one rank of a swarm's job to its end; returns its exit code."""
    rank = await agree(transport, "rank", asyncio.to_thread(prepare, transport, job, launch, text))
    swarm, path = secrets.token_hex(8), job.config.checkpoint if transport.rank == 0 else None
    claimed = await agree(transport, "claim", asyncio.to_thread(claim, path, swarm) if path else asyncio.sleep(0))
    if transport.rank == 0:
        steps = job.config.steps
        print(f"{text.describe(job.tokens * steps, steps)}; device: {rank.executor.device}", flush=True)
    if claimed and claimed.warning:
        tell(f"warning: {claimed.warning}")
    try:
        with claimed or nullcontext():
            async with meeting_point(transport, job.config.listen, partial(rank.begin, swarm=swarm)) as address:
                await _take_part(rank, SwarmAddress(coordinator=address), stop)
                await gather(transport, "gone", True)
    finally:
        rank.executor.close()
    return 0


async def _take_part(rank: Rank, address: SwarmAddress, stop: StopRequest) -> None:
    """Run this rank's peer and, where it has one, its trainer, until rank 0 ends the training."""
    async with AsyncExitStack() as stack:
        peer = rank.peer(*await stack.enter_async_context(entered(address)))
        trainer = rank.trainer(*await stack.enter_async_context(entered(address))) if rank.trains else None
        active_time = ActiveTime(rank.transport, rank.executor)
        async with Nursery() as tasks:
            serving = tasks.create_task(peer.run())
            training = tasks.create_task(trainer.run() if trainer else asyncio.Event().wait())
            if rank.transport.rank:
                await _follow(rank, tasks, training, active_time, stop, view=peer.view)
            else:
                await Lead(rank, trainer, active_time, address, stop).run(training)
            serving.cancel()


async def _follow(
    rank: Rank, tasks: Nursery, training: asyncio.Task, active_time: ActiveTime, stop: StopRequest, *, view: SwarmView
) -> None:
    """On other ranks: train until rank 0 or a signal requests a stop; serve until rank 0 has fetched the model."""
    transport = rank.transport
    sending = tasks.create_task(active_time.send(view))
    halt = tasks.create_task(transport.receive(0, HALT))
    stopping = tasks.create_task(stop_requested(stop, view))
    await asyncio.wait([halt, stopping], return_when=asyncio.FIRST_COMPLETED)
    await cancelled(training, stopping, sending)
    await transport.send(0, HALTED)
    await halt
    await transport.receive(0, OVER)
