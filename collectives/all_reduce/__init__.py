"""All-reduce, one algorithm per file; the name of the file is the name of the algorithm everywhere."""

from collectives.all_reduce.dispatch import all_reduce
from collectives.all_reduce.registry import algorithms, format_choice, module_of, names_in, parse_choice

__all__ = ["algorithms", "all_reduce", "format_choice", "module_of", "names_in", "parse_choice"]
