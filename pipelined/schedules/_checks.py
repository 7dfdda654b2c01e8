"""Refusals that several schedules share. The rule: a message says the fact, the numbers and what would do."""

from pipelined.schedules._contract import Layout, ScheduleError, Shape


def check_positive(shape: Shape) -> None:
    """Refuse a shape without stages or without microbatches."""
    for name in ("depth", "microbatches"):
        if getattr(shape, name) < 1:
            raise ScheduleError(f"--{name} must be at least 1 (it is {getattr(shape, name)})")


def check_chunks(name: str, shape: Shape) -> None:
    """Refuse more than one stage of a pipe on a worker."""
    if shape.chunks != 1:
        raise ScheduleError(f"{name} puts one stage of a pipe on a worker (chunks: {shape.chunks}); use --chunks 1")


def one_pipe(name: str, shape: Shape) -> Layout:
    """The layout of a schedule with a single pipe: stage s on worker s, microbatches in their order.

    Raises:
        ScheduleError: the shape asks for more pipes, chunks, or a scale of its own.
    """
    check_positive(shape)
    check_chunks(name, shape)
    if shape.pipes not in (0, 1):
        raise ScheduleError(f"{name} has one pipe (pipes: {shape.pipes}); leave --pipes out, or use chimera")
    if shape.scale != "direct":
        raise ScheduleError(f"{name} takes any number of microbatches as it is (scale: {shape.scale}); use direct")
    placement = {(0, stage): (stage,) for stage in range(shape.depth)}
    return Layout(shape.depth, shape.depth, placement, (tuple(range(shape.microbatches)),))
