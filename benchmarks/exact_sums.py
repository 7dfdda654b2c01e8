"""What exact sums cost beside plain ones: `mpirun -n 2 python -m benchmarks.exact_sums`, and again with `--gpt2`.

Steps of both kinds in turn, on the same ranks and batches; then, also in turn, rounding and all-reduce of one step's
gradients in the form that is used (float64) and as whole numbers (int64). With --digests: one digest of a GPT-2's
parameters in many arrangements, each a run of `apps.gpt2`.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from time import perf_counter, process_time
from typing import Any

import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig
from benchmarks.harness.flags import flags
from benchmarks.harness.launch import run_ranks
from benchmarks.harness.ranks import spread
from benchmarks.harness.results import ROOT, Reported, tell
from collectives import all_reduce
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.planner.trial import RandomTokens
from pipelined.programs.plan import Plan
from pipelined.programs.updates.exact_grid import Grid
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.grids import CHUNK
from transports import Transport

KINDS = ("plain", "exact", "control")
"""The trainers, in the order in which they are built. Control is a second plain one: what lies between both is
noise, or owed to their places in memory."""
OPTIMIZER = OptimizerConfig(lr=1e-4, steps=1000)
ELEMENTS = 1 << 22
"""Elements of which both forms are timed."""
TRAINED = (
    "--exact-sums --digest 20 --steps 20 --sample 0 --layers 6 --d-model 64 --heads 4 --batch 16 --microbatch 2 "
    "--seq 32 --warmup 2 --dropout 0.1 --data LICENSE"
)
ARRANGEMENTS = {
    1: ["--schedule gpipe --depth 1", "--schedule one_f_one_b --depth 2 --transport local", "--recompute --depth 1"],
    2: [
        "--schedule gpipe --depth 1 --width 2", "--schedule one_f_one_b --depth 2", "--schedule chimera --depth 2",
        "--schedule zb_h1 --depth 2", "--schedule zb_v --depth 4 --all-reduce ring", "--schedule dualpipe_v --depth 4",
        "--schedule chimera --depth 2 --transport tcp",
    ],
    3: ["--schedule one_f_one_b --depth 3"],
    4: [
        "--schedule gpipe --depth 1 --width 4", "--schedule one_f_one_b --depth 2 --width 2",
        "--schedule chimera --depth 4", "--schedule chimera --depth 4 --pipes 4", "--schedule chimera_w --depth 4",
        "--schedule zb_h1 --depth 4", "--schedule dualpipe --depth 4", "--schedule interleaved --depth 8 --chunks 2",
    ],
    8: ["--schedule chimera --depth 4 --width 2", "--schedule one_f_one_b --depth 8"],
}  # fmt: skip
"""Flags of runs, by the number of ranks."""


@dataclass(frozen=True)
class Options(Reported):
    """Measure exact sums."""

    digests: bool = False
    """Instead of seconds: the digests of many arrangements; starts the ranks itself."""
    gpt2: bool = False
    """GPT-2 of 124M parameters with 4,096 tokens a microbatch, instead of the sizes below."""
    schedule: str = "one_f_one_b"
    """The schedule's name; one stage a rank."""
    layers: int = 8
    """Transformer blocks."""
    d_model: int = 256
    """Width of the model."""
    heads: int = 8
    """Attention heads."""
    vocab: int = 4096
    """Vocabulary."""
    seq: int = 128
    """Tokens a sequence."""
    microbatch: int = 4
    """Sequences in a microbatch (B)."""
    microbatches: int = 8
    """N."""
    rounds: int = 20
    """Steps of each kind, in turn."""

    @property
    def model(self) -> ModelConfig:
        if self.gpt2:
            return replace(PRESETS["gpt2"], dropout=0.0)
        return ModelConfig(self.layers, self.d_model, self.heads, self.vocab, self.seq, dropout=0.0)

    @property
    def sequence(self) -> int:
        return self.model.positions


async def bench(transport: Transport, options: Options) -> int:
    """One rank: train steps of both kinds in turn; rank 0 tells their times."""
    plan = Plan(options.schedule, transport.world_size, 1, options.microbatch, options.microbatches)
    with ExitStack() as stack:
        executor = TorchExecutor("cpu", RealClock(), transport.set_computing)
        stack.callback(executor.close)
        async with Actor(transport) as actor:
            trainers = {}
            for name in KINDS:
                job = JobDescription(
                    model=GPT2(options.model), plan=plan,
                    feed=RandomTokens(options.model.vocab, (options.microbatch, options.sequence)),
                    optimizer_settings=OPTIMIZER, numerics=Numerics(exact_sums=name == "exact"),
                    sequence=options.sequence, seed=0,
                )  # fmt: skip
                trainers[name] = build_rank(actor, job, executor=executor, tracer=NullTracer())
            seconds, cpu = await _rounds(trainers, options.rounds)
            held = {name: _bytes_of(one.local.buckets) for name, one in trainers.items()}
            forms = await _forms(trainers["exact"], options.rounds)
    every = await gather_objects(transport, "held", held)
    cpus = await gather_objects(transport, "cpu", cpu)
    if transport.rank == 0:
        found = {**asdict(options), "ranks": transport.world_size, "seconds": seconds}
        found["cpu_seconds"] = {
            name: [sum(step) for step in zip(*(rank[name] for rank in cpus), strict=True)] for name in trainers
        }
        found |= {"bytes": every, "forms": forms}
        tell(options, found, lambda: as_table(options, found))
    return 0


async def _rounds(trainers: dict[str, RankTrainer], rounds: int) -> tuple[dict[str, list[float]], ...]:
    """Seconds and this process's CPU seconds of each kind's steps; the kind that goes first changes every round."""
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    cpu: dict[str, list[float]] = {name: [] for name in trainers}
    for step in range(rounds + 2):
        turn = step % len(KINDS)
        for name in KINDS[turn:] + KINDS[:turn]:
            began = process_time()
            report = await trainers[name].step(step)
            if step >= 2:  # the first steps find grids and warm up
                seconds[name].append(report.step_s)
                cpu[name].append(process_time() - began)
    return seconds, cpu


def _bytes_of(buckets: Iterable[Bucket]) -> dict[str, int]:
    """The bytes of gradients and their sums that a rank holds, and those that an all-reduce takes."""
    kept = [{id(tensor): tensor.nbytes for tensor in (bucket.gradient, bucket.summed)} for bucket in buckets]
    return {
        "held": sum(sum(each.values()) for each in kept),
        "summed": sum(bucket.summed.nbytes for bucket in buckets),
    }


async def _forms(trainer: RankTrainer, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds to round and add as many gradients of one microbatch, and to sum the result over all ranks, by form."""
    gradient, grid = torch.randn(ELEMENTS), Grid.for_sums(8.0, trainer.plan.total_microbatches)
    sums = {"float64": torch.zeros(ELEMENTS, dtype=torch.float64), "int64": torch.zeros(ELEMENTS, dtype=torch.int64)}
    seconds: dict[str, dict[str, list[float]]] = {form: {"round": [], "all_reduce": []} for form in sums}
    for turn in range(rounds):
        for form in list(sums)[:: 1 if turn % 2 else -1]:
            began = perf_counter()
            _round_and_add(gradient, grid, sums[form])
            rounded = perf_counter()
            await all_reduce(trainer.world, sums[form], "sum")
            seconds[form]["round"].append(rounded - began)
            seconds[form]["all_reduce"].append(perf_counter() - rounded)
            sums[form].zero_()
    return seconds


def _round_and_add(gradient: torch.Tensor, grid: Grid, sums: torch.Tensor) -> None:
    """Round to the grid and add, a piece at a time: as a float64, or as the number of spacings."""
    for piece, part in zip(gradient.split(CHUNK), sums.split(CHUNK), strict=True):
        if sums.dtype == torch.float64:
            part.add_(piece.to(torch.float64).add_(grid.rounding).sub_(grid.rounding))
        else:
            part.add_(piece.to(torch.float64).mul_(1.0 / grid.spacing).round_().to(torch.int64))


def as_table(options: Options, found: dict[str, Any]) -> str:
    """Medians, their ratios with quartiles, and bytes."""
    seconds = found["seconds"]
    lower, middle, upper = spread(_ratios(seconds))
    least, other, most = spread([one / plain for one, plain in zip(seconds["control"], seconds["plain"], strict=True)])
    low, ratio, high = spread(_ratios(found["cpu_seconds"]))
    model = options.model
    lines = [
        f"{options.schedule} on {found['ranks']} ranks, {model.layers} blocks of {model.d_model}, "
        f"{options.microbatch * options.sequence} tokens a microbatch, rounds: {options.rounds}",
        f"plain  {statistics.median(seconds['plain']) * 1e3:8.1f} ms a step; a second plain one {other:.3f} of it "
        f"({least:.3f}-{most:.3f})",
        f"exact  {statistics.median(seconds['exact']) * 1e3:8.1f} ms a step, {middle:.3f} of both plain ones' mean "
        f"({lower:.3f}-{upper:.3f})",
        f"CPU seconds of all ranks: {ratio:.3f} of plain ({low:.3f}-{high:.3f})",
    ]
    for rank, each in enumerate(found["bytes"]):
        for what in ("summed", "held"):
            lines.append(f"rank {rank}: {each['plain'][what]:,} bytes {what}, exactly {each['exact'][what]:,}")
    for form, times in found["forms"].items():
        round_s, sum_s = (statistics.median(times[what]) for what in ("round", "all_reduce"))
        lines.append(f"{form}, {ELEMENTS:,} elements: round and add {round_s * 1e3:.1f} ms, sum {sum_s * 1e3:.1f} ms")
    return "\n".join(lines)


def _ratios(each: dict[str, list[float]]) -> list[float]:
    """In each round, what exact sums took, of the mean of both plain trainers."""
    rounds = zip(each["exact"], each["plain"], each["control"], strict=True)
    return [2 * one / (plain + control) for one, plain, control in rounds]


def digests() -> list[dict[str, Any]]:
    """Train every arrangement; what each was, and its digest after the last step."""
    rows = []
    for ranks, several in ARRANGEMENTS.items():
        for words in several:
            rows.append({"ranks": ranks, "flags": words, "digest": _digest(ranks, words)})
            print(f"{ranks} ranks {words}: {rows[-1]['digest']}", file=sys.stderr, flush=True)
    return rows


def _digest(ranks: int, words: str) -> str:
    launcher = [sys.executable] if ranks == 1 else ["mpirun", "-n", str(ranks), sys.executable]
    if "--transport tcp" in words:
        launcher = ["torchrun", "--nproc-per-node", str(ranks)]
    command = [*launcher, "-m", "apps.gpt2", *TRAINED.split(), *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("digest of all parameters")]
    return found[-1] if found else f"code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"


def digest_table(rows: Iterable[dict[str, Any]]) -> str:
    """A line an arrangement."""
    return "\n".join(f"| {row['ranks']} | `{row['flags']}` | {row['digest']} |" for row in rows)


def main() -> int:
    """Read the flags; returns the exit code, 1 where digests differ."""
    options = flags(Options, "exact_sums")
    if options.digests:
        rows = digests()
        tell(options, rows, lambda: digest_table(rows))
        return int(len({row["digest"] for row in rows}) > 1)
    torch.set_num_threads(1)
    return run_ranks(lambda transport: bench(transport, options))


if __name__ == "__main__":
    sys.exit(main())
