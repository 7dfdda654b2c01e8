"""All-reduce, one algorithm a file: the file's name is the algorithm's name everywhere."""

from collectives.all_reduce._by_size import choices, in_words, names_in
from collectives.all_reduce._call import all_reduce
from collectives.all_reduce._known import algorithms, known

__all__ = ["algorithms", "all_reduce", "choices", "in_words", "known", "names_in"]
