"""A group of ranks: its calls in order, its messages, and the memory that it keeps and shares."""

from collectives.group.communicator import Communicator
from collectives.group.group import PIECE, Group

__all__ = ["PIECE", "Communicator", "Group"]
