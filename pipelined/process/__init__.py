"""One process of a job: how it starts, runs, is asked to stop, and exits."""
