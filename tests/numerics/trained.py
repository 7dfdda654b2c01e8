"""Ranks of a job in one process, each with a trainer, over the local transport."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import torch

from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.replay import Order
from transports import Transport, new_event_loop
from transports.local import world

T = TypeVar("T")


@asynccontextmanager
async def opened(
    transport: Transport, job: JobDescription, tracer: Tracer | None = None, orders: Mapping[int, Order] | None = None
) -> AsyncIterator[RankTrainer]:
    """The trainer of one rank."""
    executor = TorchExecutor("cpu", RealClock(), transport.set_computing)
    try:
        async with Actor(transport) as actor:
            yield build_rank(actor, job, executor=executor, tracer=tracer or NullTracer(), orders=orders)
    finally:
        executor.close()


def on_ranks(
    job: JobDescription, work: Callable[[RankTrainer], Awaitable[T]], ends: Sequence[Transport] = ()
) -> list[T]:
    """What a piece of work with each rank's trainer returns, in rank order.

    Args:
        ends: the ranks of a local world; empty: of a plain one.
    """

    async def rank(transport: Transport) -> T:
        async with opened(transport, job) as trainer:
            return await work(trainer)

    async def everyone() -> list[T]:
        return await asyncio.gather(*map(rank, ends or world(job.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())


def on_every_rank(
    case: Any,
    work: Callable[[RankTrainer, Transport], Awaitable[T]],
    dtype: torch.dtype = torch.float32,
    **numerics: str,
) -> list[T]:
    """As `on_ranks`, of a case."""
    return on_ranks(case.job(dtype, **numerics), lambda trainer: work(trainer, trainer.context.actor.transport))


def seed_cpu(seed: int) -> None:
    """As `torch.manual_seed` does, which also writes the stack down for each kind of GPU that is not there."""
    torch.default_generator.manual_seed(seed)
