"""Actors: tasks with a mailbox, the messages they exchange, and agreement among all ranks."""
