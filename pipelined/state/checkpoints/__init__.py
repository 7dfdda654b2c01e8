"""Checkpoints of a job: what is saved, by which rank, and how another arrangement loads it."""
