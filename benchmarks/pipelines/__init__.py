"""Pipelines that benchmarks train, simulate or plan, and those of other software."""
