"""One step out of a trace, in a form that can be drawn and compared: rows from 0, time from its first forward."""

from dataclasses import replace
from pathlib import Path

from pipelined.errors import UsageError
from pipelined.traces.drawing.scene import PASSES
from pipelined.traces.file import Span, read
from pipelined.traces.tracer import NOWHERE


def is_pass(span: Span) -> bool:
    """Whether this is a forward or backward (half) of a known microbatch through a known stage."""
    return span.category in PASSES and NOWHERE not in (span.step, span.stage, span.microbatch, span.pipe)


def read_step(path: Path, requested_step: int | None) -> tuple[int, list[str], list[Span]]:
    """One step of a trace.

    Args:
        requested_step: the number of the step; None: the middle one, which includes no one-time work.
    Returns: its number, the names of its rows, and its spans without idle time.
    Raises:
        UsageError: the file is missing, truncated or no trace, or it has no such step.
    """
    spans = read(path)
    step = _choose_step(spans, requested_step, path)
    ranks = sorted({span.rank for span in spans})
    return step, [f"rank {rank}" for rank in ranks], _spans_of_step(spans, step, ranks)


def _choose_step(spans: list[Span], requested_step: int | None, path: Path) -> int:
    steps = sorted({span.step for span in spans if is_pass(span)})
    if not steps:
        raise UsageError(f"the trace {path} holds no forward or backward of a stage; give a file written by --trace")
    if requested_step is None:
        return steps[len(steps) // 2]
    if requested_step not in steps:
        fact = f"the trace {path} holds no step {requested_step} (steps: {steps[0]} to {steps[-1]})"
        raise UsageError(f"{fact}; choose one of them")
    return requested_step


def _spans_of_step(spans: list[Span], step: int, ranks: list[int]) -> list[Span]:
    in_step = (span for span in spans if span.step == step)
    step_spans = [span for span in in_step if is_pass(span) or span.category not in (*PASSES, "idle")]
    origin = min(span.start for span in step_spans if is_pass(span))
    row = {rank: row for row, rank in enumerate(ranks)}
    return [
        replace(span, rank=row[span.rank], start=max(span.start - origin, 0.0), end=span.end - origin)
        for span in step_spans
        if span.end > origin
    ]
