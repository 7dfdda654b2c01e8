"""The algorithms of all-gather, one a file."""
