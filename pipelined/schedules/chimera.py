"""Chimera: 1F1B pipes run down and up the same workers at once, each filling the other's bubbles.

D = 4, N = 4, B = 2F:
  worker 0 (0 3)  |F0|F1|  |F2|B2   |F3|B3   |  |B0   |     |B1   |
  worker 1 (1 2)     |F0|F2|F1|F3|  |B2   |B0   |B3   |B1   |
  worker 2 (1 2)     |F2|F0|F3|F1|  |B0   |B2   |B1   |B3   |
  worker 3 (0 3)  |F2|F3|  |F0|B0   |F1|B1   |  |B2   |     |B3   |

A *unit* is the schedule of D microbatches (or fewer) over 2f pipes. Units follow one another in the order without a
gap. Inside a unit each instruction has a slot; no two instructions of a worker share one, because D is even.

Bubble of a worker for N = KD, where F and B are the seconds of a forward and a backward and messages are free:
  direct            (D/2f-1)((F+B) + (2K-1)(B-F))    B >= F      D/2+1 … D live microbatches (f = 1)
  forward doubling  (D/2-1)((F+B+X) + (K-2)(B-2F))   K even, B >= 2F            3D/2+1 … 2D
                    (D/2-1)((F+B+X) + (K-3)(B-2F) + 2(B-F))   K odd, at least 3
  backward halving  (D/2-1)((F+B+X)/2 + (K-1)(B-2F))   B >= 2F                  half of those
with X = max(0, B-3F), which is 0 where a backward takes as long as two to three forwards, as it does in practice.
Source: Li and Hoefler, Chimera (2021), sections 3.1 (two pipes), 3.5 (more microbatches), 3.6 (more pipes).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from pipelined.schedules.parts.knobs import PIPES, SCALE
from pipelined.schedules.parts.placements import require_even, require_one_chunk, require_positive
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap
from pipelined.schedules.parts.worker import Worker

KNOBS = (SCALE, PIPES)


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


def stage_map(shape: Shape) -> ChimeraStageMap:
    """Down pipe i puts stage s on worker (i·D/f + s) mod D; up pipe i puts it on D-1 minus that number.

    Takes any number of microbatches: K units of D and one of the remainder. With forwards doubled a unit has 2D
    microbatches, and the last unit is a plain one if K is odd. Backward halving does the same with 2N halves.

    Raises:
        ScheduleError: an odd depth, pipes that are not 2f with f a divisor of D/2, more than one chunk, or a scale
            that does not take this shape.
    """
    require_positive(shape)
    require_one_chunk("chimera", shape)
    depth = shape.depth
    pipes_each_way = _pipes_each_way(shape)
    placement = dict[tuple[int, int], int]()
    pieces = 2 if SCALE.of(shape) == "backward-halving" else 1
    units = tuple(_cut_into_units(shape, 2 * pipes_each_way, pieces))
    for pipe, stage in product(range(pipes_each_way), range(depth)):
        worker = (pipe * depth // pipes_each_way + stage) % depth
        placement |= {(pipe, stage): worker, (pipes_each_way + pipe, stage): depth - 1 - worker}
    return ChimeraStageMap(depth, depth, placement, _number_microbatches(units), pieces=pieces, units=units)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    for op, pipe in order(worker):
        if op == "F":
            await worker.forward(pipe)
        else:
            await worker.backward(pipe)


def order(worker: Worker) -> Iterable[tuple[str, int]]:
    """(op, pipe) of a worker in order; op is F or B."""
    if _units_of(worker)[0].forwards_per_slot == 2:
        return _doubled_order(worker)
    return [(op, pipe) for _, op, pipe in slots(worker)]


def slots(worker: Worker) -> list[tuple[int, str, int]]:
    """(slot, op, pipe) in order: microbatch j of a unit runs its forwards from slot 2j on, one stage a slot, then its
    backwards in the reverse order of stages."""
    depth = worker.stage_map.depth
    entries = []
    for index, unit in enumerate(_units_of(worker)):
        for pipe, stage in worker.stage_map.held_by(worker.index):
            for j in range(unit.shares[pipe]):
                first_slot = 2 * depth * index + 2 * j
                entries += [(first_slot + stage, "F", pipe), (first_slot + 2 * depth - 1 - stage, "B", pipe)]
    return sorted(entries)


def _doubled_order(worker: Worker) -> Iterator[tuple[str, int]]:
    """(op, pipe) in order with forwards doubled, for two pipes (section 3.5, Figure 7d).

    D = 4, N = 8, B = 2F:
      worker 0 (0 3)  |F0|F1|F2|F3|F4|F5|B4   |F6|F7|B5   |  |B0   |B6   |B1   |B7   |B2   |     |B3   |
      worker 1 (1 2)     |F0|F1|F4|F5|F2|F3|F6|F7|B4   |B0   |B5   |B1   |B6   |B2   |B7   |B3   |
      worker 2 (1 2)     |F4|F5|F0|F1|F6|F7|F2|F3|B0   |B4   |B1   |B5   |B2   |B6   |B3   |B7   |
      worker 3 (0 3)  |F4|F5|F6|F7|F0|F1|B0   |F2|F3|B1   |  |B4   |B2   |B5   |B3   |B6   |     |B7   |

    In `own_pipe` the worker holds the stage of the smaller number. The last backwards of that pipe in one unit run
    between the first forwards of the next unit. Comments show the parts of workers 0 and 1.
    """
    half = worker.stage_map.depth // 2
    own_pipe, other_pipe = (0, 1) if worker.index < half else (1, 0)
    to_end = min(worker.index, worker.stage_map.depth - 1 - worker.index)
    to_middle = half - to_end
    late_backwards: list[tuple[str, int]] = []  # a backward that the unit before left to the first forwards of this one
    for unit in _units_of(worker):
        per_slot = unit.forwards_per_slot
        forward_own, forward_other = [("F", own_pipe)] * per_slot, [("F", other_pipe)] * per_slot
        yield from (late_backwards + forward_own) * to_middle  # F0 F1 F2 F3, and F0 F1
        yield from (forward_other + forward_own) * to_end  # -, and F4 F5 F2 F3
        yield from [*forward_other, ("B", other_pipe)] * to_middle  # F4 F5 B4 F6 F7 B5, and F6 F7 B4
        pairs = to_end + (per_slot - 1) * half
        yield from [("B", own_pipe), ("B", other_pipe)] * pairs  # B0 B6 B1 B7, and B0 B5 B1 B6 B2 B7
        late_backwards = [("B", own_pipe)]
    yield from late_backwards * to_middle  # B2 B3, and B3


def _units_of(worker: Worker) -> tuple[Unit, ...]:
    if not isinstance(worker.stage_map, ChimeraStageMap):
        fact = f"chimera's order takes chimera's stage map (given: {type(worker.stage_map).__name__})"
        raise ScheduleError(f"{fact}; return `chimera.stage_map(shape)` from `stage_map`")
    return worker.stage_map.units


def _cut_into_units(shape: Shape, pipes: int, pieces: int) -> Iterator[Unit]:
    """The units of a step; each microbatch of the shape counts as this number of pieces."""
    depth = shape.depth
    microbatches_left = shape.microbatches * pieces
    if SCALE.of(shape) != "direct":
        _require_doubling(shape, pipes)
        for _ in range(microbatches_left // (2 * depth)):
            yield Unit((depth, depth), 2)
        microbatches_left %= 2 * depth
    for size in [depth] * (microbatches_left // depth) + [microbatches_left % depth] * (microbatches_left % depth > 0):
        yield Unit(tuple((size + pipes - 1 - pipe) // pipes for pipe in range(pipes)))


def _number_microbatches(units: tuple[Unit, ...]) -> tuple[tuple[int, ...], ...]:
    """The microbatches of each pipe, numbered unit by unit, and pipe by pipe inside a unit."""
    pipes: list[list[int]] = [[] for _ in units[0].shares]
    next_number = 0
    for unit in units:
        for pipe, share in enumerate(unit.shares):
            pipes[pipe] += range(next_number, next_number + share)
            next_number += share
    return tuple(map(tuple, pipes))


def _pipes_each_way(shape: Shape) -> int:
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
