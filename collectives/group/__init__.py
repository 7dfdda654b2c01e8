"""A group of ranks: its calls in order, its messages, and the memory that it keeps and shares."""

from collectives.group.group import PIECE, Communicator, Group

__all__ = ["PIECE", "Communicator", "Group"]
