"""The algorithms of all-to-all, one a file."""
