"""How well the planner predicts: `mpirun -n 2 python -m benchmarks.planner`, and with more ranks emulated.

Everything is measured in the run itself: first stages and links, as `python -m pipelined plan` does, then a few steps
of many arrangements, the best predicted among them, in two passes, so that a slow minute does not fall on all steps of
one. With one or two ranks GPT-2 trains for real; with more, devices only let time pass, and what is held to the
prediction is the pipeline, its messages and its sums.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.model_to_plan import GPT2ToPlan, planned_model_of
from benchmarks.harness.flags import flags
from benchmarks.harness.punctual import PunctualClock
from benchmarks.harness.results import Reported, tell
from benchmarks.harness.timed_executor import TimedExecutor
from benchmarks.pipelines.planned import Emulated, emulate, train
from benchmarks.pipelines.predictions import as_table, plain, row_of, spread_out
from collectives import Group, Links, barrier
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.measurement.measure import measure
from pipelined.measurement.timed.messages_and_sums import measure_hops, measure_sums
from pipelined.measurement.timed.runtime import measure_instruction
from pipelined.planner import SearchRequest
from pipelined.planner.candidates import Candidate, candidates
from pipelined.planner.memory_limit import sizes_that_fit
from pipelined.planner.request import TRIES, SimulatedCandidate
from pipelined.planner.trial import try_candidates
from pipelined.process.launch import Launch, detect
from pipelined.process.run import run
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine
from transports import Transport

REAL = 2
"""The most ranks that train for real: as many as this machine has cores."""
SLEPT_S = 5e-3
"""Of an instruction by which the lateness of emulated ones is measured."""


@dataclass(frozen=True)
class Options(Reported):
    """Hold the planner to its predictions."""

    configurations: int = 24
    """Arrangements that are run: a third the best predicted, the others evenly from the rest."""
    steps: int = 8
    """Steps timed of each: half of them in a pass over all arrangements, half on the way back."""
    batch: int = 16
    """Sequences a step."""
    layers: int = 4
    """Transformer blocks, where GPT-2 trains for real."""
    d_model: int = 256
    """Width of the model."""
    seq: int = 64
    """Tokens a sequence."""

    def planned(self, ranks: int) -> Any:
        """What is planned with so many ranks."""
        if ranks > REAL:
            return Emulated(batch=self.batch)
        config = GPT2Flags(layers=self.layers, d_model=self.d_model, seq=self.seq, batch=self.batch)
        return planned_model_of(config)


async def bench(transport: Transport, options: Options, launch: Launch) -> int:
    """One rank: measure, let rank 0 predict, run what it picks, compare."""
    planned = options.planned(transport.world_size)
    request = await measured_request(transport, planned, launch)
    picked = await asyncio.to_thread(pick, request, options.configurations) if request else []
    if isinstance(planned, GPT2ToPlan):
        picked = await tried(transport, planned, picked, TRIES)
    chosen = await shared(transport, "picked", picked)
    taken = await measured_steps(transport, planned, chosen, options.steps)
    if request is not None:
        rows = [row_of(outcome, *measured) for outcome, measured in zip(picked, taken, strict=True)]
        tell(options, plain(options, transport.world_size, rows), lambda: as_table(rows))
    return 0


async def tried(
    transport: Transport, planned: GPT2ToPlan, picked: Sequence[SimulatedCandidate], most: int
) -> list[SimulatedCandidate]:
    """The same on rank 0, with that first which took least of the first few, as the planner tries them."""
    best = await shared(transport, "tried", picked[:most])
    executor = TorchExecutor("cpu", RealClock(), transport.set_computing)
    try:
        seconds = await try_candidates(transport, planned, best, executor, _say)
    finally:
        executor.close()
    chosen = min(range(len(seconds)), key=seconds.__getitem__, default=0)
    return [*picked[chosen : chosen + 1], *picked[:chosen], *picked[chosen + 1 :]]


async def shared(transport: Transport, what: str, picked: Sequence[SimulatedCandidate]) -> list[Candidate]:
    """What rank 0 picked, on all ranks."""
    plans = await broadcast_object(
        transport, what, [[o.candidate.plan.to_dict(), o.candidate.recompute] for o in picked]
    )
    return [Candidate(Plan.of(plan), again) for plan, again in plans]


async def measured_request(transport: Transport, planned: Any, launch: Launch) -> SearchRequest | None:
    """With what is measured here; on rank 0."""
    ranks = transport.world_size
    if isinstance(planned, GPT2ToPlan):
        sizes = sizes_that_fit(planned, ranks, 1 << 34)
        found = await measure(
            transport, planned, launch, sizes=sizes, machine=Machine(Links()), ranks=ranks, progress=_say
        )
        return found and SearchRequest(planned, found.costs, found.machine, ranks)
    device = TimedExecutor({"forward": SLEPT_S, "backward": SLEPT_S}, PunctualClock())
    async with Actor(transport) as actor:
        late = await measure_instruction(actor, device) - SLEPT_S
        hops = await measure_hops(
            actor, RealClock(), [(0, 1), (ranks - 2, ranks - 1)], device.clock.sleep, progress=_say
        )
        sums = await measure_sums(actor, RealClock(), tuple(range(ranks)), "auto", progress=_say)
    planned = replace(planned, late=max(0.0, late))
    return hops and sums and SearchRequest(planned, planned, Machine(hops.links, near_sums=sums.links), ranks)


def _say(line: str) -> None:
    """Print no progress."""


def pick(request: SearchRequest, count: int) -> list[SimulatedCandidate]:
    """The arrangements to run: the best predicted, then evenly from all others by their predictions."""
    planned = request.model
    every = candidates(request.ranks, planned.batch, len(planned.layer_costs), planned.fixed)
    suiting = [c for c in every if isinstance(planned, GPT2ToPlan) or planned.suits(c.plan)]
    return spread_out(map(request.simulate, suiting), count)


async def measured_steps(
    transport: Transport, planned: Any, chosen: Sequence[Candidate], steps: int
) -> list[tuple[list[float], list[int]]]:
    """(seconds of each step, bytes of each rank) of each, on rank 0; one pass over all, and one back.

    Args:
        steps: of each, half of them in either pass.
    """
    rows = [(list[float](), list[int]()) for _ in chosen]
    device = TorchExecutor("cpu", RealClock(), transport.set_computing)
    try:
        async with Actor(transport) as actor:
            for turn, place in enumerate([*range(len(chosen)), *reversed(range(len(chosen)))]):
                taken, counted = await _steps(actor, planned, chosen[place], device, turn, steps // 2)
                rows[place][0].extend(taken)
                rows[place][1][:] = counted
    finally:
        device.close()
    return rows


async def _steps(
    actor: Actor, planned: Any, candidate: Candidate, device: TorchExecutor, turn: int, steps: int
) -> tuple[list[float], list[int]]:
    """(seconds of each of so many steps, bytes of each rank where it trains) of one arrangement in one pass."""
    transport, counted, first = actor.transport, None, turn * (steps + 3)
    await barrier(Group(transport, tuple(range(transport.world_size)), 0))
    if isinstance(planned, GPT2ToPlan):
        taken, counted = await train(actor, planned, candidate, device, first, steps)
    else:
        taken = await emulate(actor, planned, candidate, first, steps)
    everyone = await gather_objects(transport, f"counted {turn}", counted)
    return taken, [nbytes for nbytes in everyone if nbytes is not None]


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "planner")
    torch.set_num_threads(1)
    launch = detect(os.environ)
    return run(launch, launch.world_size or 1, lambda transport: bench(transport, options, launch))


if __name__ == "__main__":
    sys.exit(main())
