"""Collectives: coroutines over a group of ranks. A non-blocking collective is simply a task."""

from collectives.all_gather import all_gather
from collectives.all_reduce import all_reduce
from collectives.all_to_all import all_to_all
from collectives.allocate import allocate
from collectives.arrays import segment, segments
from collectives.barrier import barrier
from collectives.broadcast import broadcast
from collectives.cost_model import Links, MeasuredTimes
from collectives.fifo_lock import BrokenGroup
from collectives.group import Group
from collectives.reduce_scatter import reduce_scatter
from collectives.signature import Mismatch, Signature
from collectives.tuning import measure

__all__ = [
    "BrokenGroup",
    "Group",
    "Links",
    "MeasuredTimes",
    "Mismatch",
    "Signature",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "allocate",
    "barrier",
    "broadcast",
    "measure",
    "reduce_scatter",
    "segment",
    "segments",
]
