"""The algorithms of all-reduce, one a file."""
