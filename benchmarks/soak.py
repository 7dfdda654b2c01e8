"""Whether a long run keeps its levels of memory, descriptors, tasks and messages: `python -m benchmarks.soak`.

A tiny GPT-2 on two ranks over TCP and over MPI, and a swarm of four peers in one process, each for so many steps. The
levels after the first thousand steps are set beside those at the end; one that rose by more than chance allows is
named, and the exit code is then 1.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.harness.levels import Levels
from benchmarks.harness.ranks import ROOT, check, free_port, outputs_of, program
from benchmarks.harness.results import Reported, tell
from pipelined.errors import UsageError

RANKS = 2
OVER = ("tcp", "mpi", "swarm")
A_STEP_S = 1.0
"""Seconds a step after which a run counts as hung, beside the first minute."""


@dataclass(frozen=True)
class Options(Reported):
    """Run for long and see what grows."""

    over: tuple[str, ...] = OVER
    """What runs: ranks over tcp or mpi, or a swarm."""
    steps: int = 10_000
    """Steps of each."""
    settled: int = 1_000
    """Steps after which the levels are looked at first."""
    looks: int = 10
    """Steps in a row after which the levels are read; the least counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(looks=[self.looks], settled=[self.settled])
        if unknown := [name for name in self.over if name not in OVER]:
            raise UsageError(f"nothing runs over {unknown[0]!r}; known: {', '.join(OVER)}")
        if self.steps < self.settled + 2 * self.looks:
            fact = f"too few steps to compare (--steps {self.steps}, --settled {self.settled}, --looks {self.looks})"
            raise UsageError(f"{fact}; give at least {self.settled + 2 * self.looks}")


@dataclass(frozen=True)
class Soaked:
    """One process's levels.

    Args:
        name: what ran, and the rank.
        step_s: seconds a step, the start included.
        grown: the levels that rose by more than chance allows.
    """

    name: str
    before: Levels
    after: Levels
    step_s: float
    grown: list[str]


def soak(over: str, options: Options) -> list[Soaked]:
    """Run over one transport, or as a swarm, to the levels of each process."""
    task = {"steps": options.steps, "settled": options.settled, "looks": options.looks}
    began = time.perf_counter()
    out = outputs_of(_start(over, json.dumps(task)), 60 + A_STEP_S * options.steps)[0]
    step_s = (time.perf_counter() - began) / options.steps
    pairs = json.loads(out.splitlines()[-1])
    return [_soaked(f"{over} {rank}", pair, step_s, options) for rank, pair in enumerate(pairs)]


def _soaked(name: str, pair: list[dict[str, Any]], step_s: float, options: Options) -> Soaked:
    before, after = (Levels(**levels) for levels in pair)
    return Soaked(name, before, after, step_s, before.grown(after, options.steps - options.settled))


def _start(over: str, task: str) -> list["subprocess.Popen[str]"]:
    """Start the processes; the first prints."""
    ranks = [sys.executable, "-m", "benchmarks.pipelines.soak_ranks", task]
    if over == "swarm":
        return [_process([sys.executable, "-m", "benchmarks.swarm.soak_swarm", task])]
    if over == "mpi":
        return [_process([str(Path(sys.executable).with_name("mpirun")), "-n", str(RANKS), *ranks])]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [_process(ranks, **shared, RANK=str(rank)) for rank in range(RANKS)]


def _process(words: list[str], **variables: str) -> "subprocess.Popen[str]":
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)


def lines(found: Soaked) -> list[str]:
    """A line for each level."""
    before, after = asdict(found.before), asdict(found.after)
    verdicts = {name: "GROWS" if name in found.grown else "level" for name in before}
    return [f"{found.name:8} {name:12} {before[name]:14,} {after[name]:14,}  {verdicts[name]}" for name in before]


def table(options: Options, found: list[Soaked]) -> str:
    """The levels of every process, and how long a step took."""
    head = f"{'':8} {'':12} {f'step {options.settled}':>14} {f'step {options.steps}':>14}"
    paces = [f"{one.name}: {1e3 * one.step_s:.1f} ms a step" for one in found]
    return "\n".join([head, *(line for one in found for line in lines(one)), *paces])


def main() -> int:
    """Read the flags, run, and show what came of it."""
    options = tyro.cli(Options, prog="python -m benchmarks.soak")
    found = [each for over in options.over for each in soak(over, options)]
    raw = {"steps": options.steps, "settled": options.settled, "soaks": [asdict(one) for one in found]}
    tell(options, raw, lambda: table(options, found))
    return 1 if any(one.grown for one in found) else 0


if __name__ == "__main__":
    sys.exit(program(main))
