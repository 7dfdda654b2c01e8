"""Timing of the runtime: the seconds of an instruction besides its computing.

The worker of training runs a schedule over a stage that computes nothing, on all ranks at once. No messages are sent;
`messages_and_sums` times those. All ranks call each function together; rank 0 gets the median over ranks, others 0.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import prepare
from pipelined.traces.tracer import NullTracer
from pipelined.training.exchange.parcels import Parcel
from pipelined.training.job.rank_context import RankContext
from pipelined.training.segments.worker import TrainWorker
from transports import Nursery

MICROBATCHES = 16
ROUNDS = 7
COMPUTED_S = 5e-3
"""Seconds of a computation, in which the event loop goes to sleep."""


class _EmptyStage:
    """A stage that computes nothing, and its empty data."""

    def forward(self, *args: Any) -> Parcel:
        return Parcel((0.0,))

    def backward(self, *args: Any) -> None:
        return None

    backward_input = backward_weight = backward

    def inputs(self, step: int, microbatch: int) -> int:
        return 0

    targets = inputs


async def measure_instruction(actor: Actor, executor: Executor) -> float:
    """Seconds from one instruction to the next of this executor."""
    plan = Plan("gpipe", 1, actor.transport.world_size, 1, MICROBATCHES)
    stage = _EmptyStage()
    prepared = await asyncio.to_thread(prepare, plan, 0)
    context = RankContext(actor, plan, {0: stage}, executor, stage, tracer=NullTracer(), seed=0)
    computations = sum(instruction.computes for instruction in prepared.instructions)
    times = []
    for round_ in range(ROUNDS):
        await gather_objects(actor.transport, f"instruction round {round_}", None)
        start = executor.clock.now()
        async with Nursery() as queue:
            worker = TrainWorker(context, round_, program=prepared.instructions, instructions=queue)
            await prepared.schedule.schedule(worker)
        times.append((executor.clock.now() - start) / computations)
    return await _median_over_ranks(actor, "instruction seconds", times)


async def measure_call(actor: Actor, executor: Executor) -> float:
    """Seconds of an empty call of the executor, which the timing of a stage already includes."""
    times = []
    for _ in range(2 * MICROBATCHES):
        _, start, end = await executor.run("forward", lambda: None)
        times.append(end - start)
    return await _median_over_ranks(actor, "call seconds", times)


async def measure_hand_over(actor: Actor, executor: Executor, compute: Callable[[float], Awaitable[object]]) -> float:
    """Seconds beside the computing for which the loop awaits a computation of the executor.

    Args:
        compute: keeps the executor busy for a number of seconds.
    """
    times = []
    for _ in range(2 * MICROBATCHES):
        start = executor.clock.now()
        busy_before = executor.busy
        await compute(COMPUTED_S)
        times.append(executor.clock.now() - start - (executor.busy - busy_before))
    return await _median_over_ranks(actor, "hand-over seconds", times)


async def _median_over_ranks(actor: Actor, name: str, times: list[float]) -> float:
    medians = await gather_objects(actor.transport, name, statistics.median(times))
    return statistics.median(medians) if medians else 0.0
