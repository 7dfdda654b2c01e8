"""All-reduce, one algorithm a file: the file's name is the algorithm's name everywhere."""

from collectives.all_reduce.dispatch import all_reduce
from collectives.all_reduce.registry import algorithms, choices, in_words, known, names_in

__all__ = ["algorithms", "all_reduce", "choices", "in_words", "known", "names_in"]
