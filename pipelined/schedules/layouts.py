"""Layouts that several schedules share. The rule: what a layout cannot be is refused here, with what would do."""

from pipelined.schedules.checks import check_chunks, check_direct, check_even, check_pipes, check_positive
from pipelined.schedules.worker import Layout, ScheduleError, Shape


def one_pipe(name: str, shape: Shape) -> Layout:
    """A single pipe: stage s on worker s, microbatches in their order.

    Raises:
        ScheduleError: the shape asks for more pipes, chunks, or a scale of its own.
    """
    check_positive(shape)
    check_chunks(name, shape)
    check_pipes(name, shape, 1)
    check_direct(name, shape)
    placement = {(0, stage): (stage,) for stage in range(shape.depth)}
    return Layout(shape.depth, shape.depth, placement, (tuple(range(shape.microbatches)),))


def both_ways(name: str, shape: Shape, microbatches: tuple[tuple[int, ...], tuple[int, ...]]) -> Layout:
    """Two pipes over the same workers: stage s of pipe 0 on worker s, of pipe 1 on worker D-1-s.

    Args:
        microbatches: those of each pipe, in their order.
    Raises:
        ScheduleError: the shape asks for other pipes, chunks, or a scale of its own.
    """
    check_positive(shape)
    check_chunks(name, shape)
    check_pipes(name, shape, 2)
    check_direct(name, shape)
    down = {(0, stage): (stage,) for stage in range(shape.depth)}
    up = {(1, stage): (shape.depth - 1 - stage,) for stage in range(shape.depth)}
    return Layout(shape.depth, shape.depth, down | up, microbatches)


def folded(name: str, shape: Shape) -> Layout:
    """One pipe down D/2 workers and up again, like a V: worker w holds the stages w and D-1-w.

    There is only one way to fold, so a shape that says nothing of chunks (1) is taken for one that says 2.

    Raises:
        ScheduleError: an odd depth, or the shape asks for more pipes, other chunks, or a scale of its own.
    """
    check_positive(shape)
    check_pipes(name, shape, 1)
    check_direct(name, shape)
    if shape.chunks not in (1, 2):
        raise ScheduleError(f"{name} folds two stages onto each worker (chunks: {shape.chunks}); use --chunks 2")
    check_even(name, shape)
    placement = {(0, stage): (min(stage, shape.depth - 1 - stage),) for stage in range(shape.depth)}
    return Layout(shape.depth, shape.depth // 2, placement, (tuple(range(shape.microbatches)),))
