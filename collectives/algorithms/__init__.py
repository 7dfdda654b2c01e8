"""The algorithms by which collectives run, one a file; the name of the file is the name of the algorithm everywhere."""

from collectives.algorithms.registry import algorithms, format_choice, module_of, names_in, parse_choice

__all__ = ["algorithms", "format_choice", "module_of", "names_in", "parse_choice"]
