"""The schedules, one per file (the file's name is the schedule's name), and the table of them all."""

from pipelined.schedules.declared_knobs import checked_knobs, knobs_of, own_knobs, require_knobs
from pipelined.schedules.default_shape import default_depth, default_microbatches, even_chunks, table_shape, workers_of
from pipelined.schedules.parts.knobs import AHEAD, CHUNKS, MAX_AHEAD, PIPES, SCALE, Knob, KnobValue, alive_limits
from pipelined.schedules.parts.stage_map import (
    FLUSH,
    ScheduleError,
    Shape,
    StageMap,
    Updates,
    require_count,
    require_sizes,
)
from pipelined.schedules.parts.worker import EVERY, SUM, InstructionKey, Worker
from pipelined.schedules.registry import (
    Schedule,
    UnknownSchedule,
    bytecode_limit,
    find,
    is_builtin,
    label,
    require_known,
    schedule_names,
)
from pipelined.schedules.user.load import SomeSchedule, name_of
from pipelined.schedules.user.table import TableSchedule, run_segment, write_table

__all__ = [
    "AHEAD",
    "CHUNKS",
    "EVERY",
    "FLUSH",
    "MAX_AHEAD",
    "PIPES",
    "SCALE",
    "SUM",
    "InstructionKey",
    "Knob",
    "KnobValue",
    "Schedule",
    "ScheduleError",
    "Shape",
    "SomeSchedule",
    "StageMap",
    "TableSchedule",
    "UnknownSchedule",
    "Updates",
    "Worker",
    "alive_limits",
    "bytecode_limit",
    "checked_knobs",
    "default_depth",
    "default_microbatches",
    "even_chunks",
    "find",
    "is_builtin",
    "knobs_of",
    "label",
    "name_of",
    "own_knobs",
    "require_count",
    "require_knobs",
    "require_known",
    "require_sizes",
    "run_segment",
    "schedule_names",
    "table_shape",
    "workers_of",
    "write_table",
]
