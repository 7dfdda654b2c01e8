"""The collectives, one a file: each checks its arguments, enters a call of the group, and runs an algorithm."""
