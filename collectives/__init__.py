"""Collectives: coroutines over a group of ranks. A non-blocking collective is simply a task."""

from collectives._group import Group
from collectives._links import Links
from collectives._pieces import segment, segments
from collectives._prices import Prices, measure
from collectives._terms import Mismatch
from collectives._turn import BrokenGroup
from collectives.all_gather import all_gather
from collectives.all_reduce import all_reduce
from collectives.all_to_all import all_to_all
from collectives.allocate import allocate
from collectives.barrier import barrier
from collectives.broadcast import broadcast
from collectives.reduce_scatter import reduce_scatter

__all__ = [
    "BrokenGroup",
    "Group",
    "Links",
    "Mismatch",
    "Prices",
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
