"""The searches for the best strategy of a problem, a file each, and their table."""
