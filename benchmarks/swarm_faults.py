"""How long a swarm stalls when a process dies, stops or is cut off: `python -m benchmarks.swarm_faults`.

Real processes over TCP (the swarm that the tests strike: 3 stages of 3 peers, 2 trainers, a coordinator), each run
with one fault: kill -9, SIGSTOP or cut links as a phase begins for the n-th time, n drawn at random. A stall is the
longest time from one step to the next from the strike on, less the median of such times before it. The loss is
detected when another process learns of it from the directory. Every weight that any peer prints must equal one
process's, to the bit. The sweep over the sum's phases: `--phases prepare reduce part summed --offsets 30`.
"""

import asyncio
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import tyro

from benchmarks.harness.ranks import check, program
from benchmarks.harness.results import Reported, tell
from pipelined.errors import UsageError
from tests.swarm.exact import Reference
from tests.swarm.exact_process import BATCH, CUT, LEASE_S, STAGES, STEPS
from tests.swarm.real_swarm import train

TIMES_A_STEP = {
    "forward": 4,
    "backward": 4,
    "acknowledged": 8,
    "prepare": 1,
    "reduce": 1,
    "part": 2,
    "summed": 1,
    "commit": 1,
    "microbatch": 6,
    "returning": 18,
    "manifest": 0,
    "chunk": 0,
}
"""How often a phase begins at one peer or trainer in a step, about; 0: only where one joins."""
OF_TRAINERS = ("microbatch", "returning")
"""A trainer's phases: it is given a microbatch; it asks for a backward."""
DETECTION_S = {"SIGKILL": 1.0, "SIGSTOP": LEASE_S, CUT: LEASE_S}
"""Promised: a closed connection is noticed within a second, silence within the lease."""
MOST = 2.0
"""Detections that a stall may last."""


@dataclass(frozen=True)
class Options(Reported):
    """Strike a swarm and time its stalls."""

    phases: tuple[str, ...] = tuple(TIMES_A_STEP)
    """Where to strike."""
    signals: tuple[str, ...] = tuple(DETECTION_S)
    """How: SIGKILL, SIGSTOP or CUT (its links), the last two until another process knows that it is gone."""
    offsets: int = 3
    """Runs of each phase and signal, at moments drawn at random."""
    seed: int = 0
    """Of these moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(offsets=[self.offsets])
        for known, given, what in ((TIMES_A_STEP, self.phases, "phase"), (DETECTION_S, self.signals, "signal")):
            for name in given:
                if name not in known:
                    raise UsageError(f"unknown {what} {name!r}; known: {', '.join(known)}")


@dataclass(frozen=True)
class Fault:
    """A signal for one process, in one phase."""

    phase: str
    signal: str
    who: str
    times: int

    @property
    def late(self) -> list[str]:
        """Peers that join while the others train, so that a state is transferred."""
        return [] if TIMES_A_STEP[self.phase] else [f"{self.who[:2]}d"]


@dataclass(frozen=True)
class Run:
    """One fault and what came of it.

    Args:
        struck: whether its moment came at all.
        stall_s: seconds; None where it did not.
        detected_s: seconds until others knew that it was gone; None where they never did.
        differing: printed weights that are not those of one process.
        told: printed weights in all.
    """

    fault: Fault
    struck: bool
    stall_s: float | None
    ordinary_s: float
    differing: int
    told: int
    detected_s: float | None = None


def drawn(options: Options) -> Iterator[Fault]:
    """The faults, in a random order within each round."""
    draw = random.Random(options.seed)
    for _ in range(options.offsets):
        for phase in options.phases:
            for signal in options.signals:
                each = TIMES_A_STEP[phase]
                letter = draw.choice("ab") if each else "a"  # a joining peer requests the state from the first by name
                who = "t0" if phase in OF_TRAINERS else f"s{draw.randrange(2)}{letter}"
                yield Fault(phase, signal, who, draw.randint(each + 1, 3 * each) if each > 1 else each + 1)


def strike(fault: Fault) -> Run:
    """Train to the last step with this fault."""
    faults = {fault.who: f"{fault.phase}:{fault.times}:{fault.signal}"}
    everyone, trainers = asyncio.run(train(faults, fault.late))
    lines = [(at, w) for each in (*everyone, *trainers) for at, w in zip(each.moments, each.said, strict=True)]
    return judged(fault, sorted(lines, key=lambda line: line[0]))


def judged(fault: Fault, lines: Sequence[tuple[float, list[str]]]) -> Run:
    """What the lines of all processes say, in the order in which they came."""
    reference, stood = Reference(STAGES, BATCH), dict[int, float]()
    taken = [(at, int(words[1]), int(words[2]), words[3]) for at, words in lines if words[0] == "took"]
    for at, step, _, _ in taken:
        stood.setdefault(step, at)
    differing = sum(told != reference.weights(step, stage).tobytes().hex() for _, step, stage, told in taken)
    differing += stood.keys() != set(range(1, STEPS + 1))
    struck = [at for at, words in lines if words[0] == "struck"]
    stall, ordinary = _stall(sorted(stood.values()), struck[0]) if struck else (None, 0.0)
    gone = [at - struck[0] for at, words in lines if struck and words == ["gone", fault.who]]
    return Run(fault, bool(struck), stall, ordinary, differing, len(taken), min(gone, default=None))


def _stall(stood: Sequence[float], struck: float) -> tuple[float | None, float]:
    """The stall and an ordinary step; None where no step was still to come, or none had been before."""
    gaps = [(after, after - before) for before, after in pairwise(stood)]
    since, before = ([gap for at, gap in gaps if (at >= struck) == late] for late in (True, False))
    ordinary = statistics.median(before or [gap for _, gap in gaps])
    return (max(since) - ordinary if since else None), ordinary


@dataclass(frozen=True)
class Row:
    """All runs of a phase and signal."""

    phase: str
    signal: str
    stalls: tuple[float, ...]
    differing: int
    told: int
    detections: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """The longest stall, in promised detections."""
        return max(self.stalls, default=0.0) / DETECTION_S[self.signal]

    @property
    def within(self) -> bool:
        return self.differing == 0 and self.ratio <= MOST

    def line(self) -> str:
        verdict = "" if self.within else "  OVER"
        fault = f"{self.phase:13} {self.signal:8} {len(self.stalls):3}"
        times = f"{_times(self.stalls):15} {_times(self.detections):15} {self.ratio:5.2f}"
        return f"{fault}  {times}  {self.differing:4} of {self.told}{verdict}"


def _times(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):5.2f} ({max(seconds):.2f})" if seconds else "never"


HEAD = f"{'phase':13} {'signal':8} runs {'stall, s (most)':15} {'detected (most)':15} ratio  weights that differ"


def rows_of(runs: Iterable[Run]) -> list[Row]:
    """A row for each phase and signal, in the order in which they first came."""
    groups = dict[tuple[str, str], list[Run]]()
    for run in runs:
        groups.setdefault((run.fault.phase, run.fault.signal), []).append(run)
    return [
        Row(
            *key,
            tuple(run.stall_s for run in group if run.stall_s is not None),
            sum(run.differing for run in group),
            sum(run.told for run in group),
            tuple(run.detected_s for run in group if run.detected_s is not None),
        )
        for key, group in groups.items()
    ]


def main() -> None:
    """Read the flags, strike, and print."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_faults")
    runs = list[Run]()
    for fault in drawn(options):
        runs.append(strike(fault))
        print(runs[-1], file=sys.stderr, flush=True)
    rows = rows_of(runs)
    derived: list[dict[str, Any]] = [{**asdict(row), "within": row.within} for row in rows]
    raw = {**asdict(options), "rows": derived, "runs": [asdict(run) for run in runs]}
    tell(options, raw, lambda: report(rows, runs))


def report(rows: Sequence[Row], runs: Sequence[Run]) -> str:
    """The table."""
    ordinary = statistics.median(run.ordinary_s for run in runs if run.struck)
    detections = ", ".join(f"{k} {v:g} s" for k, v in DETECTION_S.items())
    never = sum(not run.struck for run in runs)
    return "\n".join(
        [
            HEAD,
            *(row.line() for row in rows),
            f"ratio: the longest stall in promised detections ({detections})",
            f"an ordinary step takes {ordinary:.2f} s; moments that never came: {never}",
        ]
    )


if __name__ == "__main__":
    sys.exit(program(main))
