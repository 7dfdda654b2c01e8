"""The grid of arrangements that must all give one process's numbers, and the sample of it that every run makes."""

from collections.abc import Container
from dataclasses import replace

import pytest

from tests.numerics.plain import Case

WIDTHS = (1, 2)
DEPTHS = (2, 4, 8)
SCALES = ("forward-doubling", "backward-halving")
SPLIT = ("zb_h1", "zb_v", "dualpipe", "dualpipe_v", "chimera_w")
"""The schedules with a backward in two halves."""


def grid() -> list[Case]:
    """Every schedule, depth, width and count of microbatches; the tied head, dropout and recomputation go round."""
    cases = [
        Case(schedule, depth, width, microbatches)
        for schedule in ("gpipe", "one_f_one_b", "chimera", *SPLIT)
        for depth in DEPTHS
        for width in WIDTHS
        for microbatches in sorted({1, 2, 3, depth, 2 * depth, 2 * depth + 1})
    ]
    cases += [Case("chimera", depth, width, n, pipes=4) for depth in (4, 8) for width in WIDTHS for n in (2, depth, 9)]
    cases += [Case("chimera", 8, 1, n, pipes=8) for n in (3, 8, 17)]
    cases += [Case("chimera", depth, 1, 2 * depth, scale=s) for depth in DEPTHS for s in SCALES]
    cases += [Case("gems", depth, width, n) for depth in (3, 4) for width in WIDTHS for n in (1, 4, 5)]
    cases += [Case("interleaved", 2 * v, w, n, chunks=v) for v in (2, 3, 4) for w in WIDTHS for n in (2, 4)]
    cases += [Case("interleaved", 8, 1, n, chunks=2) for n in (4, 8)]
    cases += [Case("chimera_w", depth, 1, n, pipes=4) for depth in (4, 8) for n in (2, depth, 9)]
    return [_varied(number, case) for number, case in enumerate(cases)]


def _varied(number: int, case: Case) -> Case:
    """Dropout and recomputation in two cases of three, an untied head in one of five."""
    return replace(case, dropout=0.2 * (number % 3 > 0), recompute=number % 3 == 1, tied=number % 5 != 4)


def sampled(every: int, ranks: Container[int] = range(1, 17)) -> list:
    """The cases of these numbers of ranks as parameters: one in `every` of the small always, the others with --full."""
    cases = [case for case in grid() if case.plan.world_size in ranks]
    marks = [() if at % every == 0 and is_small(case) else (pytest.mark.full,) for at, case in enumerate(cases)]
    return [pytest.param(case, id=name(case), marks=mark) for case, mark in zip(cases, marks, strict=True)]


def is_small(case: Case) -> bool:
    """Whether a step runs few forwards: eight stages and 34 microbatches take 30 times as long as two and four."""
    return case.depth * case.plan.total_microbatches <= 64


def name(case: Case) -> str:
    extras = [f"{case.pipes}pipes"] * (case.pipes > 0) + [case.scale] * (case.scale != "direct")
    extras += [f"{case.chunks}chunks"] * (case.chunks > 1)
    extras += ["recompute"] * case.recompute + ["dropout"] * (case.dropout > 0) + ["untied"] * (not case.tied)
    return "-".join([case.schedule, f"D{case.depth}", f"W{case.width}", f"N{case.microbatches}", *extras])
