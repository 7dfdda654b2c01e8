"""What benchmarks are written with: their flags, their processes, the machine they ran on, and their results."""
