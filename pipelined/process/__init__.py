"""One process of a job: how it starts, runs, receives a stop request, and exits."""
