"""All-reduce, one algorithm per file; the name of the file is the name of the algorithm everywhere."""

from collectives.all_reduce.dispatch import all_reduce
from collectives.all_reduce.registry import algorithms, choices, in_words, known, names_in

__all__ = ["algorithms", "all_reduce", "choices", "in_words", "known", "names_in"]
