"""How many bytes may lie at a receiver that has not asked for them; both ends count, and neither asks the other.

A sender spends what it sends of its own accord, and gets it back when the receiver says that it was taken. What is
beyond the limit is offered instead and stays at the sender, so no message ever waits for credit behind another one.
The one rule: a receiver need not trust its peer's count. Numbers only, no I/O.
"""

from transports._errors import WireError

ALL_PEERS_BYTES = 256 << 20
LEAST_BYTES = 1 << 20
FRAME_BYTES = 256  # what a message is taken to cost beside its body, so that empty ones are not free


def credit_limit(world_size: int) -> int:
    """The bytes that one peer may have lying at a rank: its share of 256 MiB, but at least 1 MiB."""
    return max(LEAST_BYTES, ALL_PEERS_BYTES // max(1, world_size - 1))


class Credit:
    """One rank's count with one peer, both ways.

    Args:
        limit: bytes each way; the same at both ends.
    """

    __slots__ = ("_came", "_limit", "_spent", "_taken")

    def __init__(self, limit: int):
        self._limit = limit
        self._spent = self._came = self._taken = 0

    def spend(self, nbytes: int) -> bool:
        """Whether a message with a body of this size may be sent unasked; if so, it counts from now on."""
        cost = nbytes + FRAME_BYTES
        if self._spent + cost > self._limit:
            return False
        self._spent += cost
        return True

    def save(self, nbytes: int) -> None:
        """A message that was spent on is not sent after all."""
        self._spent -= nbytes + FRAME_BYTES

    def regain(self, cost: object) -> None:
        """The peer says that so much was taken.

        Raises:
            WireError: more than was spent, or no number.
        """
        if type(cost) is not int or not 0 < cost <= self._spent:
            raise WireError(f"credit for what was never sent (credit: {cost!r}, bytes sent unasked: {self._spent})")
        self._spent -= cost

    def came(self, nbytes: int) -> None:
        """A message came that nobody had been offered.

        Raises:
            WireError: the peer has sent more than it may.
        """
        self._came += nbytes + FRAME_BYTES
        if self._came > self._limit:
            raise WireError(f"more unasked for than may lie here (bytes: {self._came}, limit: {self._limit})")

    def taken(self, nbytes: int) -> int:
        """A message that came unasked was taken; returns what is to be told to the peer by now, most often 0.

        Little is told often and much at once: a quarter of the limit.
        """
        self._taken += nbytes + FRAME_BYTES
        if 4 * self._taken < self._limit:
            return 0
        told, self._taken = self._taken, 0
        self._came -= told
        return told
