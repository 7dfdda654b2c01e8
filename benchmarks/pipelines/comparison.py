"""Measured steps of several schedules beside the simulator's, and the order among them. Nothing is measured here."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from collectives import Links
from pipelined.programs.costs import Costs
from pipelined.programs.instructions import OP_NAMES
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import find
from pipelined.simulation import Machine, StageCosts, Workload, simulate
from pipelined.simulation.machine import FREE

FREE_LIMIT, SIMULATED_LIMIT, ALPHA_LIMIT_S = 1.10, 1.05, 0.5e-3
"""What is promised: of a step over the free and over the simulated makespan, and of an empty message."""


@dataclass(frozen=True)
class Row:
    """One schedule at one shape.

    Args:
        name: the schedule's, with its scale where that is not direct.
        free_s: makespan with free messages.
        simulated_s: makespan with the measured links.
        steps_s: the slowest rank's seconds of each step.
    """

    name: str
    depth: int
    microbatches: int
    ranks: int
    free_s: float
    simulated_s: float
    steps_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def over_free(self) -> float:
        return self.step_s / self.free_s

    @property
    def over_simulated(self) -> float:
        return self.step_s / self.simulated_s

    @property
    def within(self) -> bool:
        return self.over_free <= FREE_LIMIT and self.over_simulated <= SIMULATED_LIMIT

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        derived = ("step_s", "over_free", "over_simulated", "within")
        return {**vars(self), **{name: getattr(self, name) for name in derived}}

    def line(self) -> str:
        """As a row of the table."""
        low, high = min(self.steps_s), max(self.steps_s)
        verdict = "" if self.within else "  over"
        return (
            f"{self.depth:3} {self.microbatches:3} {self.name:26} {self.ranks:5} {self.free_s * 1e3:9.1f} "
            f"{self.simulated_s * 1e3:9.1f} {self.step_s * 1e3:9.1f} ({low * 1e3:.1f}-{high * 1e3:.1f}) "
            f"{self.over_free:6.3f} {self.over_simulated:6.3f}{verdict}"
        )


HEAD = f"{'D':>3} {'N':>3} {'schedule':26} {'ranks':>5} {'free':>9} {'simulated':>9} {'step':>9} (least-most), ratios"


@dataclass(frozen=True)
class Inversion:
    """Two schedules that were measured in the other order than simulated.

    Args:
        predicted: how much longer `later` was to take than `sooner`, as a share.
        measured: how much longer `sooner` took than `later`, as a share.
    """

    sooner: str
    later: str
    predicted: float
    measured: float

    def line(self) -> str:
        return (
            f"{self.sooner} was to be {self.predicted:.1%} shorter than {self.later} and was {self.measured:.1%} longer"
        )


@dataclass(frozen=True)
class Entry:
    """What is compared.

    Args:
        name: the schedule's, with its scale where that is not direct.
        recorded: in the order that a dynamic schedule has with free messages, whenever messages come.
    """

    name: str
    plan: Plan
    recorded: bool = False


def makespan(entry: Entry, costs: StageCosts, links: Links | None = None) -> float:
    """Seconds until the last backward has ended, with such links or with free messages."""
    plan, links = entry.plan, links or FREE
    if not entry.recorded:
        return simulate(plan, Workload.even(plan.depth, costs), Machine(links)).makespan
    seconds = {name: costs.seconds(op) for op, name in OP_NAMES.items()}
    travel = links.alpha + links.beta * costs.message_bytes
    return price(record(find(plan.schedule), plan.shape), Costs(**seconds, p2p=travel)).makespan


def inversions(rows: Sequence[Row]) -> list[Inversion]:
    """The pairs measured in the other order than simulated, the most surprising first; a tie is no order."""
    pairs = combinations(sorted(rows, key=lambda row: row.simulated_s), 2)
    found = [
        Inversion(a.name, b.name, b.simulated_s / a.simulated_s - 1, a.step_s / b.step_s - 1)
        for a, b in pairs
        if _apart(a, b) and a.step_s > b.step_s
    ]
    return sorted(found, key=lambda inversion: -inversion.predicted)


def rank_correlation(rows: Sequence[Row]) -> float:
    """Kendall's tau of the simulated and the measured order, ties of the simulated one left out; 1 is the same order.

    Raises:
        ValueError: no two rows were simulated to differ.
    """
    pairs = sum(_apart(a, b) for a, b in combinations(rows, 2))
    if not pairs:
        raise ValueError(f"no order among {len(rows)} schedules; compare two that are simulated to differ")
    return 1.0 - 2.0 * len(inversions(rows)) / pairs


def _apart(a: Row, b: Row) -> bool:
    return not math.isclose(a.simulated_s, b.simulated_s, rel_tol=1e-6)
