"""The units of Chimera: which microbatches each pipe takes in each of them, and the shapes that have none."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelined.schedules.parts.knobs import PIPES, SCALE
from pipelined.schedules.parts.placements import require_even
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap


@dataclass(frozen=True)
class Unit:
    """A part of the step that is scheduled as a whole.

    Args:
        shares: the number of microbatches in each pipe.
        forwards_per_slot: forwards issued back to back for one slot: 2 where forwards are doubled, else 1.
    """

    shares: tuple[int, ...]
    forwards_per_slot: int = 1


@dataclass(frozen=True, kw_only=True)
class ChimeraStageMap(StageMap):
    """A stage map with its units, in order."""

    units: tuple[Unit, ...]


def cut_into_units(shape: Shape, pipes: int, pieces: int) -> Iterator[Unit]:
    """The units of a step; each microbatch of the shape counts as this number of pieces."""
    depth = shape.depth
    left = shape.microbatches * pieces
    if SCALE.of(shape) != "direct":
        _require_doubling(shape, pipes)
        for _ in range(left // (2 * depth)):
            yield Unit((depth, depth), 2)
        left %= 2 * depth
    for size in [depth] * (left // depth) + [left % depth] * (left % depth > 0):
        yield Unit(tuple((size + pipes - 1 - pipe) // pipes for pipe in range(pipes)))


def numbered(units: tuple[Unit, ...]) -> tuple[tuple[int, ...], ...]:
    """The microbatches of each pipe, numbered unit by unit, and pipe by pipe inside a unit."""
    pipes: list[list[int]] = [[] for _ in units[0].shares]
    number = 0
    for unit in units:
        for pipe, share in enumerate(unit.shares):
            pipes[pipe] += range(number, number + share)
            number += share
    return tuple(map(tuple, pipes))


def pipes_each_way(shape: Shape) -> int:
    """f, the number of pipes in each direction."""
    require_even("chimera", shape)
    pipes = PIPES.of(shape) or 2
    half = shape.depth // 2
    possible = [2 * f for f in range(1, half + 1) if half % f == 0]
    if pipes not in possible:
        fact = f"chimera has 2f pipes where f divides half the depth (pipes: {pipes}, depth: {shape.depth})"
        raise ScheduleError(f"{fact}; `pipes=` can be {', '.join(map(str, possible))}")
    return pipes // 2


def _require_doubling(shape: Shape, pipes: int) -> None:
    scale = SCALE.of(shape)
    if pipes != 2:
        raise ScheduleError(f"{scale} takes two pipes (pipes: {pipes}); use `pipes=2` or `scale=direct`")
    if shape.microbatches % shape.depth:
        fact = f"{scale} takes whole units (microbatches: {shape.microbatches}, depth: {shape.depth})"
        raise ScheduleError(f"{fact}; use a multiple of the depth, or `scale=direct`")
