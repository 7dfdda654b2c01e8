"""Stage maps that several schedules share (one pipe, both ways, folded like a V), and the checks of a shape."""

from dataclasses import replace

from pipelined.schedules.parts.knobs import AHEAD, CHUNKS, PIPES, SCALE
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap, Updates


def one_pipe(name: str, shape: Shape) -> StageMap:
    """A single pipe: stage s on worker s, microbatches in the order of their numbers.

    Raises:
        ScheduleError: the shape has more pipes or chunks, or a scale.
    """
    require_settings(name, shape)
    require_one_chunk(name, shape)
    placement = {(0, stage): stage for stage in range(shape.depth)}
    return StageMap(shape.depth, shape.depth, placement, (tuple(range(shape.microbatches)),))


def one_pipe_without_flush(name: str, shape: Shape, updates: Updates) -> StageMap:
    """One pipe without a flush: it takes the microbatches of all steps of a segment one after another.

    Raises:
        ScheduleError: the shape has more pipes or chunks, or a scale.
    """
    microbatches = tuple(range(shape.steps * shape.microbatches))
    return replace(one_pipe(name, shape), microbatches=(microbatches,), updates=updates)


def both_ways(name: str, shape: Shape, microbatches: tuple[tuple[int, ...], tuple[int, ...]]) -> StageMap:
    """Two pipes over the same workers: stage s of pipe 0 on worker s, of pipe 1 on worker D-1-s.

    Args:
        microbatches: those of each pipe, in the order in which they enter.
    Raises:
        ScheduleError: the shape has another number of pipes or chunks, or a scale.
    """
    require_settings(name, shape, pipes=2)
    require_one_chunk(name, shape)
    down_pipe = {(0, stage): stage for stage in range(shape.depth)}
    up_pipe = {(1, stage): shape.depth - 1 - stage for stage in range(shape.depth)}
    return StageMap(shape.depth, shape.depth, down_pipe | up_pipe, microbatches)


def folded_pipe(name: str, shape: Shape) -> StageMap:
    """One pipe down D/2 workers and up again, like a V: worker w holds the stages w and D-1-w.

    Only 2 chunks are possible, so a shape with the default number of chunks (1) is taken as one with 2.

    Raises:
        ScheduleError: an odd depth, or the shape has more pipes, another number of chunks, or a scale.
    """
    require_settings(name, shape)
    if CHUNKS.of(shape) not in (1, 2):
        raise ScheduleError(f"{name} folds two stages onto each worker (chunks: {CHUNKS.of(shape)}); use `chunks=2`")
    require_even(name, shape)
    placement = {(0, stage): min(stage, shape.depth - 1 - stage) for stage in range(shape.depth)}
    return StageMap(shape.depth, shape.depth // 2, placement, (tuple(range(shape.microbatches)),))


def require_positive(shape: Shape) -> None:
    """Refuse a shape without stages, microbatches, chunks or steps, or with a limit that `async_1f1b` alone takes."""
    CHUNKS.of(shape)  # refuses fewer than 1
    for name in ("depth", "microbatches", "steps"):
        if getattr(shape, name) < 1:
            raise ScheduleError(f"{name} must be at least 1 (it is {getattr(shape, name)})")
    if ahead := AHEAD.of(shape):
        fact = f"only async_1f1b takes a limit of the microbatches alive (ahead: {ahead})"
        raise ScheduleError(f"{fact}; leave `ahead=` out, or use async_1f1b")


def require_one_chunk(name: str, shape: Shape) -> None:
    """Refuse more than one stage of a pipe on a worker."""
    if (chunks := CHUNKS.of(shape)) != 1:
        raise ScheduleError(f"{name} puts one stage of a pipe on a worker (chunks: {chunks}); use `chunks=1`")


def require_settings(name: str, shape: Shape, pipes: int = 1) -> None:
    """Refuse a number of pipes other than the schedule's, a scale, and what `require_positive` refuses."""
    require_positive(shape)
    require_direct(name, shape)
    if PIPES.of(shape) not in (0, pipes):
        has = "one pipe" if pipes == 1 else f"{pipes} pipes"
        raise ScheduleError(f"{name} has {has} (pipes: {PIPES.of(shape)}); leave `pipes=` out, or use chimera")


def require_direct(name: str, shape: Shape) -> None:
    """Refuse a scale other than "direct"."""
    if (scale := SCALE.of(shape)) != SCALE.default:
        raise ScheduleError(f"{name} takes its microbatches as they are (scale: {scale}); use `scale=direct`")


def require_even(name: str, shape: Shape) -> None:
    """Refuse an odd number of stages."""
    if shape.depth % 2:
        fact = f"{name} needs an even depth"
        remedy = use_either("depth", shape.depth - 1, shape.depth + 1)
        other_schedules = "or a schedule that takes any depth: one_f_one_b, gpipe"
        raise ScheduleError(f"{fact} (depth: {shape.depth}); {remedy}, {other_schedules}")


def use_either(name: str, below: int, above: int) -> str:
    """The remedy in a message: the nearest possible values of a setting; `below` is 0 where no smaller one exists."""
    return f"use `{name}={below}` or {above}" if below else f"use `{name}={above}`"
