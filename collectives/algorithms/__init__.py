"""The algorithms by which collectives run, one a file; the name of the file is the name of the algorithm everywhere."""

from collectives.algorithms.base import ClosedForms
from collectives.algorithms.choice import algorithm_for, format_choice, may_share_memory, names_in, parse_choice
from collectives.algorithms.registry import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, AUTO, REDUCE_SCATTER, TABLES

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "AUTO",
    "REDUCE_SCATTER",
    "TABLES",
    "ClosedForms",
    "algorithm_for",
    "format_choice",
    "may_share_memory",
    "names_in",
    "parse_choice",
]
