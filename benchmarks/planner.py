"""How well the planner predicts: `mpirun -n 2 python -m benchmarks.planner`, and with more ranks emulated.

Everything is measured in the run itself: first stages and links, as `python -m pipelined plan` does, then a few steps
of many arrangements, the best predicted among them. With one or two ranks GPT-2 trains for real; with more, devices
only let time pass, and what is held to the prediction is the pipeline, its messages and its sums.
"""

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import tyro

from apps._config import Config
from apps._subject import Subject, subject_of
from benchmarks._emulated import PunctualClock
from benchmarks._planned import Emulated, emulate, train
from collectives import Group, Links, barrier
from pipelined.actor import Actor
from pipelined.clock import RealClock
from pipelined.device import TimedDevice, TorchDevice
from pipelined.exchange import gather, share
from pipelined.launch import Launch, detect
from pipelined.plan import Plan
from pipelined.planner import Question
from pipelined.planner.candidates import Candidate, candidates
from pipelined.planner.decision import TRIES
from pipelined.planner.limits import sizes_that_fit
from pipelined.planner.links import measure_hops, measure_sums
from pipelined.planner.measure import measure
from pipelined.planner.search import Outcome
from pipelined.planner.trial import try_plans
from pipelined.planner.walks import measure_instruction
from pipelined.runtime import run
from pipelined.simulation.machine import Machine
from transports import Transport

REAL = 2
"""The most ranks that train for real: as many as this machine has cores."""
SLEPT_S = 5e-3
"""Of an instruction by which the lateness of emulated ones is measured."""


@dataclass(frozen=True)
class Options:
    """Hold the planner to its predictions."""

    configurations: int = 24
    """Arrangements that are run: a third the best predicted, the others evenly from the rest."""
    steps: int = 7
    """Steps timed of each."""
    batch: int = 16
    """Sequences a step."""
    layers: int = 4
    """Transformer blocks, where GPT-2 trains for real."""
    d_model: int = 256
    """Width of the model."""
    seq: int = 64
    """Tokens a sequence."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def subject(self, ranks: int) -> Any:
        """What is planned with so many ranks."""
        if ranks > REAL:
            return Emulated(batch=self.batch)
        config = Config(layers=self.layers, d_model=self.d_model, seq=self.seq, batch=self.batch)
        return subject_of(config)


@dataclass(frozen=True)
class Row:
    """One arrangement: predicted and measured.

    Args:
        step_s: median of the measured steps.
        memory: (predicted, counted) bytes of each rank; empty where nothing was counted.
    """

    label: str
    depth: int
    width: int
    microbatch: int
    microbatches: int
    recompute: bool
    predicted_s: float
    step_s: float
    memory: tuple[tuple[float, int], ...]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.step_s - 1


async def bench(transport: Transport, options: Options, launch: Launch) -> int:
    """One rank: measure, let rank 0 predict, run what it picks, compare."""
    subject = options.subject(transport.world_size)
    question = await _question(transport, subject, launch)
    picked = await asyncio.to_thread(pick, question, options.configurations) if question else []
    if isinstance(subject, Subject):
        picked = await _tried(transport, subject, picked)
    taken = await _measured(transport, subject, await _shared(transport, "picked", picked), options)
    if question is not None:
        rows = [row_of(outcome, *measured) for outcome, measured in zip(picked, taken, strict=True)]
        print(as_json(options, transport.world_size, rows) if options.json else as_table(rows), flush=True)
    return 0


async def _tried(transport: Transport, subject: Subject, picked: Sequence[Outcome]) -> list[Outcome]:
    """The same on rank 0, with that first which took least of those that the planner would try."""
    best = await _shared(transport, "tried", picked[:TRIES])
    seconds = await try_plans(transport, subject, best, torch.device("cpu"), _say)
    chosen = min(range(len(seconds)), key=seconds.__getitem__, default=0)
    return [*picked[chosen : chosen + 1], *picked[:chosen], *picked[chosen + 1 :]]


async def _shared(transport: Transport, what: str, picked: Sequence[Outcome]) -> list[Candidate]:
    """What rank 0 picked, on all ranks."""
    told = await share(transport, what, [[asdict(o.candidate.plan), o.candidate.recompute] for o in picked])
    return [Candidate(Plan(**plan), again) for plan, again in told]


async def _question(transport: Transport, subject: Any, launch: Launch) -> Question | None:
    """With what is measured here; on rank 0."""
    ranks = transport.world_size
    if isinstance(subject, Subject):
        found = await measure(
            transport, subject, sizes_that_fit(subject, ranks, 1 << 34), launch, Machine(Links()), ranks, _say
        )
        return found and Question(subject, found.costs, found.machine, ranks)
    device = TimedDevice({"forward": SLEPT_S, "backward": SLEPT_S}, PunctualClock())
    async with Actor(transport) as actor:
        late = await measure_instruction(actor, device) - SLEPT_S
        hops = await measure_hops(actor, RealClock(), [(0, 1), (ranks - 2, ranks - 1)], device.clock.sleep, _say)
        sums = await measure_sums(actor, RealClock(), tuple(range(ranks)), "auto", _say)
    subject = replace(subject, late=max(0.0, late))
    return hops and sums and Question(subject, subject, Machine(hops.links, sums=sums.links), ranks)


def _say(line: str) -> None:
    """Nobody is told how far it is."""


def pick(question: Question, count: int) -> list[Outcome]:
    """The arrangements to run: the best predicted, then evenly from all others by their predictions."""
    subject = question.subject
    every = candidates(question.ranks, subject.batch, len(subject.layer_costs), subject.fixed)
    suiting = [c for c in every if isinstance(subject, Subject) or subject.suits(c.plan)]
    ranked = sorted(map(question.simulate, suiting), key=lambda outcome: outcome.order)
    best, rest = ranked[: count // 3], ranked[count // 3 :]
    left = min(count - len(best), len(rest))
    return best + [rest[number * len(rest) // left] for number in range(left)]


async def _measured(
    transport: Transport, subject: Any, chosen: Sequence[Candidate], options: Options
) -> list[tuple[list[float], list[int]]]:
    """(seconds of each step, bytes of each rank) of each, on rank 0."""
    device, rows, first = TorchDevice("cpu", RealClock(), transport.computing), [], 0
    try:
        async with Actor(transport) as actor:
            world = Group(transport, tuple(range(transport.world_size)), 0)
            for candidate in chosen:
                await barrier(world)
                counted = None
                if isinstance(subject, Subject):
                    taken, counted = await train(actor, subject, candidate, device, first, options.steps)
                else:
                    taken = await emulate(actor, subject, candidate, first, options.steps)
                everyone = await gather(transport, f"counted {first}", counted)
                rows.append((taken, [nbytes for nbytes in everyone if nbytes is not None]))
                first += options.steps + 3
    finally:
        device.close()
    return rows


def row_of(outcome: Outcome, taken: Sequence[float], counted: Sequence[int]) -> Row:
    """One arrangement's line; an emulated step ends with its sums."""
    plan, done = outcome.candidate.plan, outcome.simulated
    emulated = not any(rank.activations for rank in done.memory)
    predicted = done.makespan + done.exposed_sync if emulated else outcome.step_s
    memory = tuple((rank.total, nbytes) for rank, nbytes in zip(done.memory, counted, strict=False))
    sizes = (plan.depth, plan.width, plan.microbatch, plan.microbatches, outcome.candidate.recompute)
    return Row(outcome.candidate.label, *sizes, predicted, statistics.median(taken), memory)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What is promised: the median error, the chosen plan beside the best measured, and memory."""
    ratios = [predicted / counted for row in rows for predicted, counted in row.memory]
    return {
        "configurations": len(rows),
        "median_error": statistics.median(abs(row.error) for row in rows),
        "largest_error": max(abs(row.error) for row in rows),
        "chosen_over_best": rows[0].step_s / min(row.step_s for row in rows),
        "memory_ratios": [min(ratios), max(ratios)] if ratios else None,
    }


def as_json(options: Options, ranks: int, rows: Sequence[Row]) -> str:
    """Everything, in seconds and bytes."""
    told = [{**asdict(row), "error": row.error} for row in rows]
    cores = len(os.sched_getaffinity(0))
    return json.dumps({**asdict(options), "ranks": ranks, "cores": cores, **summary(rows), "rows": told})


def as_table(rows: Sequence[Row]) -> str:
    """A line an arrangement, the chosen first, and what came out; then memory by schedule, as the paper's Figure 9."""
    lines = [
        f"{'schedule':<26}{'D':>3}{'W':>3}{'B':>4}{'N':>4}{'again':>6}{'predicted':>11}{'measured':>10}{'error':>8}"
    ]
    for row in rows:
        sizes = f"{row.depth:>3}{row.width:>3}{row.microbatch:>4}{row.microbatches:>4}"
        times = f"{row.predicted_s * 1e3:>8.1f} ms{row.step_s * 1e3:>7.1f} ms{row.error:>+8.1%}"
        lines.append(f"{row.label:<26}{sizes}{'yes' if row.recompute else 'no':>6}{times}")
    told = summary(rows)
    error = f"median error {told['median_error']:.1%}, largest {told['largest_error']:.1%} ({len(rows)} arrangements)"
    lines += ["", f"{error}; the chosen takes {told['chosen_over_best']:.3f} x the best measured"]
    return "\n".join([*lines, *memory_lines(rows)])


def memory_lines(rows: Sequence[Row]) -> list[str]:
    """Memory of each rank, a bar a rank: counted, and predicted over counted."""
    counted = [row for row in rows if row.memory]
    if not counted:
        return []
    most, lines = max(nbytes for row in counted for _, nbytes in row.memory), ["", "memory a rank, MiB"]
    for row in sorted(counted, key=lambda row: max(row.memory)):
        for rank, (predicted, nbytes) in enumerate(row.memory):
            name = (
                f"{row.label} D={row.depth} B={row.microbatch}{' again' if row.recompute else ''}" if not rank else ""
            )
            bar = "█" * max(1, round(24 * nbytes / most))
            lines.append(f"{name:<36} rank {rank} {nbytes / 2**20:>7.1f} {predicted / nbytes:>6.3f} x {bar}")
    return lines


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = tyro.cli(Options, prog="python -m benchmarks.planner")
    torch.set_num_threads(1)
    launch = detect(os.environ)
    return run(launch, launch.world_size or 1, lambda transport: bench(transport, options, launch))


if __name__ == "__main__":
    sys.exit(main())
