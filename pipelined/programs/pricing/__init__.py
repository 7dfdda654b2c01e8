"""The time of a program: its timeline at given costs, and the steady state without a flush."""
