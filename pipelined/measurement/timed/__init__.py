"""What is timed on the ranks of a job, a file each: stages, messages, sums, moves, codec, runtime, layers, lines."""
