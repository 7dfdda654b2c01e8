"""One rank of `--schedule swarm`: a peer, on some ranks a trainer beside it, and on rank 0 the directory and the end.

Over the job's transport the ranks exchange only the directory's address and the end of training. All else they read
from the directory, as a peer from outside does. A rank that fails ends the job, as its launcher would.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial

from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.swarm.lead import HALT, HALTED, OVER, Lead, cancelled, stop_requested
from apps.gpt2.swarm.rank import Rank, prepare
from apps.gpt2.swarm.report import ActiveTime
from apps.lm.data.text import Text
from apps.swarm.address import LOOPBACK, SwarmAddress
from apps.swarm.joining import endpoint_at, entered
from pipelined.actors.agree import agree, broadcast, gather
from pipelined.aio.clock import RealClock
from pipelined.aio.nursery import Nursery
from pipelined.checkpoints.claim import claim
from pipelined.directory import serve_directory
from pipelined.errors import UsageError
from pipelined.process.exit import tell
from pipelined.process.launch import Launch
from pipelined.process.stop_request import StopRequest
from pipelined.swarm.view import SwarmView
from transports import Transport
from transports.rpc import Endpoint


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
            async with _directory_of_rank0(transport, job.config.listen, partial(rank.begin, swarm=swarm)) as address:
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


@asynccontextmanager
async def _directory_of_rank0(
    transport: Transport, listen: str | None, begin: Callable[[str], Awaitable[None]]
) -> AsyncIterator[str]:
    """The directory's address. Rank 0 serves the directory during its block, so the other ranks must finish first.

    Args:
        listen: where rank 0 accepts requests; None: on this machine alone.
        begin: called on rank 0 with the address, before other ranks receive it.
    Raises:
        AgreedError: on every rank: rank 0 cannot listen there, or there are several machines and no --listen.
    """
    endpoint = await agree(transport, "listen", _endpoint_of_rank0(transport, listen))
    if endpoint is None:
        yield await broadcast(transport, "directory")
        return
    async with endpoint, Nursery() as tasks:
        serving = tasks.create_task(serve_directory(endpoint, RealClock()))
        await begin(endpoint.address)
        yield await broadcast(transport, "directory", endpoint.address)
        serving.cancel()


async def _endpoint_of_rank0(transport: Transport, listen: str | None) -> Endpoint | None:
    machines = len(set(transport.nodes))
    if machines > 1 and listen is None:
        fact = f"there are several machines, but rank 0 listens on loopback only (machines: {machines})"
        raise UsageError(f"{fact}; add --listen tcp://HOST:0 with an address of rank 0's machine")
    return None if transport.rank else await endpoint_at(listen or LOOPBACK)
