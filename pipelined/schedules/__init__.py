"""The schedules, one a file; a file's name is the schedule's name everywhere."""

from pipelined.schedules._contract import SCALES, Layout, ScheduleError, Shape, Updates, Worker
from pipelined.schedules._discovery import Schedule, find, known, require_known

__all__ = [
    "SCALES",
    "Layout",
    "Schedule",
    "ScheduleError",
    "Shape",
    "Updates",
    "Worker",
    "find",
    "known",
    "require_known",
]
