"""Proof that a program is correct: complete, within its memory, and free of deadlock."""
