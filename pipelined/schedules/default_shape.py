"""The sizes and knobs of a schedule where a user leaves them open."""

from collections.abc import Mapping
from contextlib import suppress

from pipelined.schedules.declared_knobs import own_knobs
from pipelined.schedules.parts.knobs import CHUNKS, KnobValue
from pipelined.schedules.parts.stage_map import ScheduleError, Shape
from pipelined.schedules.registry import Schedule, find
from pipelined.schedules.user.table import TableSchedule


def default_depth(name: str, workers: int, knobs: Mapping[str, KnobValue]) -> tuple[int, dict[str, KnobValue]]:
    """The depth of a schedule for a number of workers, and its knobs: one stage on each worker where that is possible.

    zb_v and dualpipe_v have two stages on each worker, and interleaved gets two where its chunks are open. A table has
    its own depth.
    """
    knobs = dict(knobs)
    if table := table_shape(find(name)):
        return table.depth, knobs
    if CHUNKS in own_knobs(find(name)):
        knobs.setdefault(CHUNKS.name, 2)
    chunks = CHUNKS.check(knobs.get(CHUNKS.name, CHUNKS.default))
    for depth in (workers, 2 * workers, chunks * workers):
        if workers_of(name, depth, knobs) == workers:
            return depth, knobs
    return workers, knobs


def even_chunks(name: str, depth: int, workers: int, knobs: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """The knobs of a schedule, and where its chunks are open those that divide the stages among the workers equally.

    They stay open where the schedule declares none, or cannot have this depth on these workers.
    """
    open_knobs = dict(knobs)
    if CHUNKS.name not in open_knobs and CHUNKS in own_knobs(find(name)) and depth % workers == 0:
        divided_knobs = {**open_knobs, CHUNKS.name: depth // workers}
        return divided_knobs if workers_of(name, depth, divided_knobs) == workers else open_knobs
    return open_knobs


def default_microbatches(name: str, depth: int) -> int:
    """The microbatches of a pipeline of this depth where they are open: two a stage, or those of a table."""
    table = table_shape(find(name))
    return table.microbatches if table else 2 * depth


def workers_of(name: str, depth: int, knobs: Mapping[str, KnobValue]) -> int | None:
    """The workers of a pipeline of this depth; None: the schedule refuses it."""
    with suppress(ScheduleError):
        return find(name).stage_map(Shape(depth, default_microbatches(name, depth), knobs)).workers
    return None


def table_shape(schedule: Schedule) -> Shape | None:
    """The one shape that a schedule takes, if it is a table; None: it takes several."""
    return schedule.shape if isinstance(schedule, TableSchedule) else None
