"""The swarms that benchmarks measure: real processes, virtual ones, and their devices."""
