"""The predictions of arrangements beside their measurements: rows, their summary, and a table.

Nothing is run or predicted here.
"""

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelined.planner.request import SimulatedCandidate


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

    @property
    def memory_ratios(self) -> list[float]:
        """Of each rank, memory predicted over counted."""
        return [predicted / counted for predicted, counted in self.memory]


def spread_out(outcomes: Iterable[SimulatedCandidate], count: int) -> list[SimulatedCandidate]:
    """A third of this number from the best predicted, then others evenly from the rest."""
    ranked = sorted(outcomes, key=lambda outcome: outcome.order)
    best, rest = ranked[: count // 3], ranked[count // 3 :]
    left = min(count - len(best), len(rest))
    return best + [rest[number * len(rest) // left] for number in range(left)]


def row_of(outcome: SimulatedCandidate, taken: Sequence[float], counted: Sequence[int]) -> Row:
    """One arrangement's line; an emulated step ends with its sums. A team's label is the factors of its layout."""
    plan, done = outcome.candidate.plan, outcome.simulated
    emulated = not any(rank.activations for rank in done.memory)
    predicted = done.makespan + done.exposed_sums if emulated else outcome.step_s
    memory = tuple((rank.total, nbytes) for rank, nbytes in zip(done.memory, counted, strict=False))
    sizes = (plan.depth, plan.width, plan.microbatch_size, plan.microbatches, outcome.candidate.recompute)
    words = " ".join(factors.partition("=")[2] for factors in plan.layout.split(","))
    return Row(words or outcome.candidate.label, *sizes, predicted, statistics.median(taken), memory)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What is promised: the median error, the chosen plan beside the best measured, and memory."""
    ratios = [ratio for row in rows for ratio in row.memory_ratios]
    return {
        "configurations": len(rows),
        "median_error": statistics.median(abs(row.error) for row in rows),
        "largest_error": max(abs(row.error) for row in rows),
        "chosen_over_best": rows[0].step_s / min(row.step_s for row in rows),
        "memory_ratios": [min(ratios), max(ratios)] if ratios else None,
    }


def plain(options: Any, ranks: int, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything, in seconds and bytes."""
    figures = [{**asdict(row), "error": row.error} for row in rows]
    cores = len(os.sched_getaffinity(0))
    return {**asdict(options), "ranks": ranks, "cores": cores, **summary(rows), "rows": figures}


def as_table(rows: Sequence[Row]) -> str:
    """A line an arrangement, the chosen first, and what came out; then memory by schedule, as the paper's Figure 9."""
    lines = [
        f"{'schedule or layout':<30}{'D':>3}{'W':>3}{'B':>4}{'N':>4}{'again':>6}"
        f"{'predicted':>11}{'measured':>10}{'error':>8}{'memory':>12}{'predicted over it':>19}"
    ]
    for row in rows:
        sizes = f"{row.depth:>3}{row.width:>3}{row.microbatch:>4}{row.microbatches:>4}"
        times = f"{row.predicted_s * 1e3:>8.1f} ms{row.step_s * 1e3:>7.1f} ms{row.error:>+8.1%}"
        lines.append(f"{row.label:<30}{sizes}{'yes' if row.recompute else 'no':>6}{times}{_memory_cells(row)}")
    found = summary(rows)
    error = f"median error {found['median_error']:.1%}, largest {found['largest_error']:.1%} ({len(rows)} arrangements)"
    lines += ["", f"{error}; the chosen takes {found['chosen_over_best']:.3f} x the best measured"]
    return "\n".join([*lines, *memory_lines(rows)])


def _memory_cells(row: Row) -> str:
    """What the fullest rank holds, and over all ranks predicted over counted; nothing where nothing was counted."""
    if not row.memory:
        return ""
    most, ratios = max(nbytes for _, nbytes in row.memory), row.memory_ratios
    return f"{most / 2**20:>8.1f} MiB{f'{min(ratios):.3f} to {max(ratios):.3f}':>19}"


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
