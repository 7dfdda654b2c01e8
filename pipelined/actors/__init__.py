"""Actors: tasks with a mailbox, the messages they exchange, agreement among all ranks, and the device's thread."""
