"""The schedules, one per file (the file's name is the schedule's name), and the worker that they command."""

from pipelined.schedules.layout import FLUSH, SCALES, Layout, ScheduleError, Shape, StageMap, Updates
from pipelined.schedules.registry import Schedule, find, known, require_known
from pipelined.schedules.worker import Worker

__all__ = [
    "FLUSH",
    "SCALES",
    "Layout",
    "Schedule",
    "ScheduleError",
    "Shape",
    "StageMap",
    "Updates",
    "Worker",
    "find",
    "known",
    "require_known",
]
