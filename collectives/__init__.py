"""Collectives: coroutines over a group of ranks. A non-blocking collective is simply a task."""

from collectives.arrays import segment, segments
from collectives.cost_model import Links, MeasuredTimes, ProblemSize
from collectives.errors import BrokenGroup, Mismatch, Unsupported
from collectives.group import Group
from collectives.group.signature import Signature
from collectives.operations.all_gather import all_gather
from collectives.operations.all_reduce import all_reduce
from collectives.operations.all_to_all import all_to_all
from collectives.operations.allocate import allocate
from collectives.operations.barrier import barrier
from collectives.operations.broadcast import broadcast
from collectives.operations.publish import Publication, publish, start_publishing
from collectives.operations.reduce_scatter import reduce_scatter
from collectives.tuning import measure

__all__ = [
    "BrokenGroup",
    "Group",
    "Links",
    "MeasuredTimes",
    "Mismatch",
    "ProblemSize",
    "Publication",
    "Signature",
    "Unsupported",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "allocate",
    "barrier",
    "broadcast",
    "measure",
    "publish",
    "reduce_scatter",
    "segment",
    "segments",
    "start_publishing",
]
