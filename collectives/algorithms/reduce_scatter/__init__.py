"""The algorithms of reduce-scatter, one a file."""
