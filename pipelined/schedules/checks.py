"""Refusals that several schedules share. The rule: a message says the fact, the numbers and what would do."""

from pipelined.schedules.worker import ScheduleError, Shape


def check_positive(shape: Shape) -> None:
    """Refuse a shape without stages, microbatches, chunks or steps."""
    for name in ("depth", "microbatches", "chunks", "steps"):
        if getattr(shape, name) < 1:
            raise ScheduleError(f"--{name} must be at least 1 (it is {getattr(shape, name)})")


def check_chunks(name: str, shape: Shape) -> None:
    """Refuse more than one stage of a pipe on a worker."""
    if shape.chunks != 1:
        raise ScheduleError(f"{name} puts one stage of a pipe on a worker (chunks: {shape.chunks}); use --chunks 1")


def check_pipes(name: str, shape: Shape, pipes: int) -> None:
    """Refuse another number of pipes than the schedule has."""
    if shape.pipes not in (0, pipes):
        has = "one pipe" if pipes == 1 else f"{pipes} pipes"
        raise ScheduleError(f"{name} has {has} (pipes: {shape.pipes}); leave --pipes out, or use chimera")


def check_direct(name: str, shape: Shape) -> None:
    """Refuse a scale of its own."""
    if shape.scale != "direct":
        raise ScheduleError(f"{name} takes its microbatches as they are (scale: {shape.scale}); use --scale direct")


def check_even(name: str, shape: Shape) -> None:
    """Refuse an odd number of stages."""
    if shape.depth % 2:
        near = " or ".join(str(depth) for depth in (shape.depth - 1, shape.depth + 1) if depth)
        remedy = f"use --depth {near}, or a schedule that takes any depth: one_f_one_b, gpipe"
        raise ScheduleError(f"{name} needs an even depth (depth: {shape.depth}); {remedy}")
