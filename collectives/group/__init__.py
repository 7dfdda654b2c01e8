"""A group of ranks: its calls in order, its messages, and the memory that it keeps and shares.

group            what a user constructs: a communicator of its `ranks`, with what follows
communicator     bytes between these ranks inside a call; `concurrency` sends and receives at once
sequence         the calls, one at a time by `fifo_lock`
call             one call: its `signature`, compared with each peer's; `wait_check` ends calls that differ and only wait
workspace        memory and objects kept from call to call; `shared_memory`: windows and symmetric arrays
"""

from collectives.group.communicator import Communicator
from collectives.group.group import PIECE, Group

__all__ = ["PIECE", "Communicator", "Group"]
