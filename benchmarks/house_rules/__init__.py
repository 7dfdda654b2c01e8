"""The counts of `benchmarks.house`: the source tree, its rules, and types."""
