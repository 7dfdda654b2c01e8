"""The schedules, one per file (the file's name is the schedule's name), and the worker that they command."""

from pipelined.schedules.knobs import CHUNKS, PIPES, SCALE, Knob
from pipelined.schedules.layout import FLUSH, ScheduleError, Shape, StageMap, Updates
from pipelined.schedules.registry import (
    Schedule,
    default_depth,
    find,
    knobs_of,
    known,
    own_shape,
    require_knobs,
    require_known,
)
from pipelined.schedules.worker import Worker

__all__ = [
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
    "default_depth",
    "find",
    "knobs_of",
    "known",
    "own_shape",
    "require_knobs",
    "require_known",
]
