"""A case trained on a local world, for tests that look at what its ranks did."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import torch

from pipelined.actors.actor import Actor
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.traces.file import NullTracer
from pipelined.training.trainer import Numerics, RankTrainer
from tests.numerics.plain import OPTIMIZER, SEQUENCE, Case, Feed
from transports import Transport, new_event_loop
from transports.local import world

T = TypeVar("T")


def on_every_rank(
    case: Case,
    work: Callable[[RankTrainer, Transport], Awaitable[T]],
    dtype: torch.dtype = torch.float32,
    **numerics: str,
) -> list[T]:
    """What a piece of work with each rank's trainer returns, in rank order."""

    async def rank(transport: Transport) -> T:
        executor = TorchExecutor("cpu", RealClock(), transport.computing)
        try:
            async with Actor(transport) as actor:
                how = Numerics(dtype, recompute=case.recompute, **numerics)
                trainer = RankTrainer(
                    actor, case.model, case.plan, optimizer_config=OPTIMIZER, numerics=how, executor=executor,
                    feed=Feed(), tracer=NullTracer(), sequence=SEQUENCE, seed=3,
                )  # fmt: skip
                return await work(trainer, transport)
        finally:
            executor.close()

    async def everyone() -> list[T]:
        return await asyncio.gather(*map(rank, world(case.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())
