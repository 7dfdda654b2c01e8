"""Numbers of messages with a body that follows later: in rotation, so that a freed number is not used again at once."""

from transports.errors import TransportError


class NumberPool:
    """The numbers from `first` on; none is allocated twice at a time.

    Args:
        what: what is numbered, for the error.
        size: how many numbers there are.
    """

    __slots__ = ("_first", "_next_number", "_size", "_used_numbers", "_what")

    def __init__(self, what: str, size: int, first: int = 0):
        self._what, self._size, self._first = what, size, first
        self._used_numbers = set[int]()
        self._next_number = 0

    def allocate(self) -> int:
        """Allocate a number that is not in use.

        Raises:
            TransportError: all are in use.
        """
        if len(self._used_numbers) == self._size:
            fact = f"too many {self._what} (at once: {self._size}, limit: {self._size})"
            raise TransportError(f"{fact}; await some first")
        while self._next_number in self._used_numbers:
            self._next_number = (self._next_number + 1) % self._size
        number, self._next_number = self._next_number, (self._next_number + 1) % self._size
        self._used_numbers.add(number)
        return self._first + number

    def release(self, number: int) -> None:
        """Free a number; freeing one that is not in use does nothing."""
        self._used_numbers.discard(number - self._first)
