"""Steps and memory of teams beside predictions, layout by layout: `mpirun -n 2 python -m benchmarks.shard_steps`.

Stages and links are measured in the run itself, then the planner predicts ways to split a GPT-2 over all ranks, and
some of them are run: the best predicted, others down to the worst, and data parallelism. Two ranks train for real; with
more, as `mpirun -n 8`, devices only let time pass, and every move and sum is run over slow links. Then each layout
trains two steps, not timed, in which the memory of every rank is counted.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import torch

from apps.common.lm.sharded.layouts import states_of
from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.model_to_plan import GPT2ToPlan, planned_model_of
from apps.gpt2.planning.team import split_text
from apps.gpt2.planning.team_costs import team_layout_text
from benchmarks.harness.flags import flags
from benchmarks.harness.results import Reported, tell
from benchmarks.pipelines.planned import count
from benchmarks.pipelines.predictions import Row, as_table, row_of, spread_out, summary
from benchmarks.pipelines.team_replay import replayed
from benchmarks.planner import REAL, measured_request, measured_steps, shared, tried
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.measurement.timed.collective_costs import measure_collectives
from pipelined.planner import SearchRequest, StatedCosts
from pipelined.planner.candidates import ONE_STAGE, Candidate, candidates, data_parallel
from pipelined.planner.request import TRIES, SimulatedCandidate
from pipelined.process.launch import Launch, detect
from pipelined.process.run import run
from pipelined.sharding.search.matmul import factorizations
from pipelined.simulation import Machine
from transports import Transport

NAMED = ("data", "megatron")
DRAWN = 100
"""Layouts drawn at random for each size of microbatch, beside those that no other beats."""


@dataclass(frozen=True)
class Options(Reported):
    """Hold the planner to what it predicts of teams."""

    layouts: int = 12
    """Layouts and microbatches that are run: a third the best predicted, the others evenly from the rest."""
    steps: int = 8
    """Steps timed of each: half of them in a pass over all, half on the way back."""
    batch: int = 16
    """Sequences a step."""
    layers: int = 4
    """Transformer blocks."""
    d_model: int = 256
    """Width of the model."""
    seq: int = 64
    """Tokens a sequence."""
    links: str = "delay=1ms&rate=1000mbit"
    """Of ranks with emulated devices, as in a URL; empty: MPI's own."""
    speed: float = 4e9
    """Operations a second of an emulated device."""
    seed: int = 0
    """Of the draw of layouts."""

    def planned(self, ranks: int) -> GPT2ToPlan:
        """The model, with as many heads as ranks at least."""
        sizes = {"layers": self.layers, "d_model": self.d_model, "heads": max(4, ranks), "seq": self.seq}
        return planned_model_of(GPT2Flags(**sizes, batch=self.batch, tensor=ranks))


async def bench(transport: Transport, options: Options, launch: Launch) -> int:
    """One rank: measure, let rank 0 predict, run what it picks, compare."""
    ranks = transport.world_size
    planned, trains = options.planned(ranks), ranks <= REAL
    request = await (measured_request(transport, planned, launch) if trains else _stated(transport, planned, options))
    picked = await asyncio.to_thread(pick, request, options) if request else []
    alone = picked[-1:]
    if trains:
        picked = await tried(transport, planned, [*alone, *picked[:-1]], TRIES + 1)
    chosen = await shared(transport, "picked", picked)
    if trains:
        taken = await measured_steps(transport, planned, chosen, options.steps)
    else:
        sizes = {"sequence": planned.sequence, "speed": options.speed, "steps": options.steps}
        seconds = await replayed(transport, planned, chosen, **sizes)
        taken = list(zip(seconds, await counted(transport, planned, chosen), strict=True))
    if request is not None:
        rows = [row_of(outcome, *measured) for outcome, measured in zip(picked, taken, strict=True)]
        data = rows[picked.index(alone[0])]
        tell(options, plain(options, ranks, request, rows, data), lambda: table(rows, data))
    return 0


async def _stated(transport: Transport, planned: GPT2ToPlan, options: Options) -> SearchRequest | None:
    """With links that are measured here, and devices of the stated speed; on rank 0."""
    ranks = transport.world_size
    found = await measure_collectives(transport, RealClock(), tuple(range(ranks)))
    costs = StatedCosts(planned.layer_costs, planned.sequence, options.speed)
    return found and SearchRequest(planned, costs, Machine(found.pooled_links), ranks)


async def counted(transport: Transport, planned: GPT2ToPlan, chosen: Sequence[Candidate]) -> list[list[int]]:
    """Of each candidate the bytes that every rank holds as it trains, on rank 0; elsewhere this rank's alone."""
    device, found = TorchExecutor("cpu", RealClock(), transport.set_computing), list[list[int]]()
    try:
        async with Actor(transport) as actor:
            for number, candidate in enumerate(chosen):
                mine = await count(actor, planned, candidate, device, 2 * number)
                found.append(await gather_objects(transport, f"counted {number}", mine) or [mine])
    finally:
        device.close()
    return found


def pick(request: SearchRequest, options: Options) -> list[SimulatedCandidate]:
    """What to run: the best predicted first, data parallelism last."""
    outcomes = [request.simulate(candidate) for candidate in teams(request, options.seed)]
    plan = data_parallel(request.ranks, options.batch) if request.ranks <= REAL else None
    if plan is not None:
        return [*spread_out(outcomes, options.layouts), request.simulate(Candidate(plan))]
    split = split_text("data", request.ranks)
    data = min((each for each in outcomes if each.candidate.plan.layout == split), key=lambda each: each.order)
    return [*spread_out([each for each in outcomes if each is not data], options.layouts - 1), data]


def teams(request: SearchRequest, seed: int) -> Iterator[Candidate]:
    """One team of all ranks: every size of microbatch with layouts that no other beats, named ones, and drawn ones."""
    planned, ranks, chance = request.model, request.ranks, Random(seed)
    assert isinstance(planned, GPT2ToPlan)
    fixed = {"schedule": ONE_STAGE, "depth": 1, "recompute": False, "tensor": ranks}
    every = factorizations(ranks)
    for candidate in candidates(ranks, planned.batch, len(planned.layer_costs), fixed):
        layouts, _ = planned.layouts(candidate.plan, request.machine)
        drawn = [team_layout_text(tuple(chance.choices(every, k=5)), states_of("data")) for _ in range(DRAWN)]
        for split in dict.fromkeys([*layouts, *(split_text(name, ranks) for name in NAMED), *drawn]):
            plan = replace(candidate.plan, layout=split)
            if planned.can_split(plan):
                yield Candidate(plan)


def plain(options: Options, ranks: int, request: SearchRequest, rows: Sequence[Row], data: Row) -> dict[str, Any]:
    """Everything, in seconds and bytes."""
    links = asdict(request.machine.sum_links)
    setting = {"ranks": ranks, "cores": len(os.sched_getaffinity(0)), "links": links, **summary(rows)}
    each = [{**asdict(row), "error": row.error} for row in rows]
    return {**asdict(options), **setting, "data_over_chosen": data.step_s / rows[0].step_s, "rows": each}


def table(rows: Sequence[Row], data: Row) -> str:
    """A line a layout, the chosen first (factors of c_attn, attn.c_proj, c_fc, mlp.c_proj and wte)."""
    ratios = summary(rows)["memory_ratios"]
    memory = f"; memory predicted over counted {ratios[0]:.3f} to {ratios[1]:.3f}" if ratios else ""
    return f"{as_table(rows)}\ndata parallelism takes {data.step_s / rows[0].step_s:.3f} x the chosen{memory}"


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "shard_steps")
    torch.set_num_threads(1)
    launch = detect(os.environ)
    ranks = launch.world_size or 1
    if ranks > REAL and options.links:
        launch = replace(launch, url=f"{launch.url}?{options.links}")
    return run(launch, ranks, lambda transport: bench(transport, options, launch))


if __name__ == "__main__":
    sys.exit(main())
