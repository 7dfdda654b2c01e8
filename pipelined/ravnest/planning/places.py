"""Places, and the nodes that hold them, as plans and the record of a generation have them. No torch."""

from typing import NamedTuple

from pipelined.schedules.parts.knobs import MAX_AHEAD

MAX_ALIVE = MAX_AHEAD
"""The most microbatches alive on a stage, as the schedule takes them."""
MAX_STEP = 1 << 53


class Holder(NamedTuple):
    """A node in one incarnation, as a holder of a place."""

    name: str
    address: str
    incarnation: int


class StagePlace(NamedTuple):
    """One stage of one cluster: its node, its layers [first, end), and its most microbatches alive.

    The incarnation is the node's at that time: a node that has left and joined again is not in the cluster.
    """

    holder: Holder
    first: int
    end: int
    alive: int

    @property
    def stored(self) -> list[str | int]:
        """As a record has it, and `read_place` takes it: one list without the node's own."""
        return [*self.holder, *self[1:]]


def are_steps(value: object) -> bool:
    """Whether this is a list of numbers of steps."""
    return isinstance(value, (list, tuple)) and all(type(each) is int and 0 <= each < MAX_STEP for each in value)
