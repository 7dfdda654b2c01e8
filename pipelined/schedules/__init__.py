"""The schedules, one per file (the file's name is the schedule's name), and the table of them all."""

from pipelined.schedules.declared_knobs import declared, knobs_of, require_declared, require_knobs
from pipelined.schedules.default_shape import (
    default_depth,
    default_microbatches,
    divide_stages,
    table_shape,
    workers_of,
)
from pipelined.schedules.parts.knobs import AHEAD, CHUNKS, PIPES, SCALE, Knob
from pipelined.schedules.parts.stage_map import FLUSH, ScheduleError, Shape, StageMap, Updates
from pipelined.schedules.parts.worker import Worker
from pipelined.schedules.registry import Schedule, find, is_builtin, known, label, require_known

__all__ = [
    "AHEAD",
    "CHUNKS",
    "FLUSH",
    "PIPES",
    "SCALE",
    "Knob",
    "Schedule",
    "ScheduleError",
    "Shape",
    "StageMap",
    "Updates",
    "Worker",
    "declared",
    "default_depth",
    "default_microbatches",
    "divide_stages",
    "find",
    "is_builtin",
    "knobs_of",
    "known",
    "label",
    "require_declared",
    "require_knobs",
    "require_known",
    "table_shape",
    "workers_of",
]
