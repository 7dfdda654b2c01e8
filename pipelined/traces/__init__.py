"""Traces: what every rank did in a step, recorded, gathered at rank 0, and written to a file."""
