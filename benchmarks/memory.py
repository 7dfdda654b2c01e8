"""What a rank holds, beside what --dry-run says and what one process holds: `mpirun -n 4 python -m benchmarks.memory`.

Real training of a GPT-2 on every rank, as deep as there are ranks. Bytes are counted where they lie, and the process's
resident memory is read from the system; what is planned and the bound come from sizes alone. At the end the same model
trains on the same batch in one process, microbatch by microbatch.
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from apps.common.lm.data.batches import Batches
from apps.common.lm.data.tokens import TokenFeed
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.harness.bound import bound_bytes, planned_rank_memory
from benchmarks.harness.flags import flags
from benchmarks.harness.resident import resident
from benchmarks.harness.results import Reported, tell
from benchmarks.pipelines.footprint import count_activations, state_bytes
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.api.data.tokens.mapped import MappedTokens
from pipelined.planner.trial import RandomTokens
from pipelined.process.launch import LOCAL, MPI, SLURM, TORCHRUN, detect
from pipelined.process.run import run
from pipelined.programs.plan import Plan
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.job.rank_context import MicrobatchSource
from pipelined.training.optimizer import OptimizerConfig
from transports import Transport

OPTIMIZER = OptimizerConfig(lr=1e-4, steps=100)
NEAR = 0.02
"""How far what --dry-run says may be from what is counted, as a share of it."""


@dataclass(frozen=True)
class Options(Reported):
    """Count what every rank of a training run holds."""

    schedule: str = "chimera"
    """The schedule's name."""
    microbatches: int = 8
    """N."""
    microbatch: int = 4
    """Sequences in a microbatch (B)."""
    seq: int = 128
    """Tokens a sequence."""
    layers: int = 8
    """Transformer blocks."""
    d_model: int = 512
    """Width of the model."""
    heads: int = 8
    """Attention heads."""
    vocab: int = 4096
    """Vocabulary."""
    steps: int = 2
    """Steps trained; the optimizer's state is there from the first."""
    data: str = ""
    """Token ids in a file, 2 bytes each, which every rank maps. Default: random ones."""

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(self.layers, self.d_model, self.heads, self.vocab, self.seq, dropout=0.0)

    def plan(self, world_size: int) -> Plan:
        """One stage a rank; alone, a microbatch at a time."""
        schedule = self.schedule if world_size > 1 else "one_f_one_b"
        return Plan(schedule, world_size, 1, self.microbatch, self.microbatches)


@dataclass(frozen=True)
class Holding:
    """What one rank holds at its fullest, in bytes.

    Args:
        activations: the most that was kept between forwards and backwards at once.
        live: the most microbatches alive at once.
        planned: what --dry-run says of parameters, gradients, optimizer and activations together.
        bound: the most that they may be.
        resident: growth of the process's memory while it built and trained: all of this, and whatever else it took.
    """

    rank: int
    stages: list[int]
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    live: int
    planned: int
    bound: int
    resident: int

    @property
    def counted(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


async def bench(transport: Transport, options: Options) -> int:
    """One rank: train, count, and bring what was counted to rank 0."""
    before = resident("VmRSS")
    row = asdict(await _held(transport, options, before))
    rows = [Holding(**row) for row in await gather_objects(transport, "holdings", row)]
    if transport.rank == 0:
        alone = rows[0] if len(rows) == 1 else await asyncio.to_thread(_alone, options)
        tell(options, plain(options, rows, alone), lambda: as_table(options, rows, alone))
    return 0


async def _held(transport: Transport, options: Options, before: int) -> Holding:
    plan, rank = options.plan(transport.world_size), transport.rank
    executor = TorchExecutor("cpu", RealClock(), transport.set_computing)
    try:
        async with Actor(transport) as actor:
            tokens = _feed(options, plan)
            job = JobDescription(
                model=GPT2(options.model), plan=plan, feed=tokens, optimizer_settings=OPTIMIZER, numerics=Numerics(),
                sequence=options.seq, seed=0,
            )  # fmt: skip
            trainer = build_rank(actor, job, executor=executor, tracer=NullTracer())
            kept = count_activations(trainer)
            for step in range(options.steps):
                await trainer.step(step)
            peaks = {"activations": kept.peak_bytes, "live": kept.peak_microbatches}
            grown = resident("VmHWM") - before  # read before planning, which imports more of torch
            peaks["planned"] = planned_rank_memory(options.model, plan, rank, options.seq)
            bound = bound_bytes(options.model, plan, rank, options.seq)
            state = state_bytes(trainer.local.parameters.values(), trainer.optimizer)
            return Holding(rank, plan.stages_of(rank), **state, **peaks, bound=bound, resident=grown)
    finally:
        executor.close()


def _feed(options: Options, plan: Plan) -> MicrobatchSource:
    if not options.data:
        return RandomTokens(options.vocab, (options.microbatch, options.seq))
    file = Path(options.data)
    tokens = MappedTokens.open([(file, file.stat().st_size // 2)], "uint16")
    return TokenFeed(Batches(tokens, options.seq, plan.rows, plan.total_microbatches, 0))


def _alone(options: Options) -> Holding:
    """What a process of its own holds that trains the same, started as if no launcher were there."""
    launchers = {name for names in (*MPI, *LOCAL, SLURM, TORCHRUN) for name in names}
    environ = {name: value for name, value in os.environ.items() if name not in launchers}
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in asdict(options).items() if name not in ("json", "save")
    ]
    command = [sys.executable, "-m", "benchmarks.memory", *flags, "--json"]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    row = json.loads(done.stdout)["one_process"]
    return Holding(**{name: row[name] for name in Holding.__dataclass_fields__})


def plain(options: Options, rows: list[Holding], alone: Holding) -> dict[str, Any]:
    """Everything in bytes."""
    holdings = {"ranks": [_plain(row) for row in rows], "one_process": _plain(alone)}
    return {**asdict(options), "depth": len(rows), "cores": len(os.sched_getaffinity(0)), **holdings}


def _plain(row: Holding) -> dict[str, Any]:
    near = abs(row.planned - row.counted) <= NEAR * row.counted
    return {**asdict(row), "counted": row.counted, "within": row.counted <= row.bound, "near": near}


def as_table(options: Options, rows: list[Holding], alone: Holding) -> str:
    """A line a rank, in MiB."""
    sizes = ("parameters", "gradients", "optimizer", "activations", "counted", "planned", "bound", "resident")
    head = f"{options.schedule}, D = {len(rows)}, N = {options.microbatches}; MiB"
    lines = [head, f"{'':>14}{'stages':>8}{'live':>6}" + "".join(f"{size:>13}" for size in sizes)]
    for name, row in [*((f"rank {row.rank}", row) for row in rows), ("one process", alone)]:
        cells = "".join(f"{getattr(row, size) / 2**20:>13.1f}" for size in sizes)
        stages = ",".join(map(str, row.stages))
        lines.append(
            f"{name:>14}{stages:>8}{row.live:>6}{cells}{'' if row.counted <= row.bound else '  over the bound'}"
        )
    return "\n".join(lines)


def warm_up(options: Options) -> None:
    """Let torch take what it takes once: threads, code, and a first update."""
    model = GPT2(ModelConfig(1, options.heads, options.heads, 16, 8, dropout=0.0))
    module = model.build(range(model.layers), torch.float32, "cpu", 0)
    optimizer = OPTIMIZER.build(dict(module.named_parameters()))
    ids = torch.zeros(2, 8, dtype=torch.int64)
    model.loss(module(ids), ids).backward()
    optimizer.step()


def main() -> int:
    """Read the flags and run on whatever launcher started this; without one, in one process alone."""
    options = flags(Options, "memory")
    launch = detect(os.environ)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (launch.local_size or 1)))
    warm_up(options)
    return run(launch, launch.world_size or 1, lambda transport: bench(transport, options))


if __name__ == "__main__":
    sys.exit(main())
