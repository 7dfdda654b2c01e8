"""Sums and shards that benchmarks move, and the rows of their tables."""
