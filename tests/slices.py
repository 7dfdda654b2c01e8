"""Which cases a run takes: of those marked `full` all, none, or one slice; of those marked `in_turns(N)` all, or a Nth.

CI has one slice a commit. Hundreds of commits in a row take all that is `full`, and N all that is `in_turns(N)`.
"""

import argparse
import zlib
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """Slice `number` of `count`.

    The cases of one test go to the slices in turn, so that every slice has its share of each grid, and no slice takes
    much longer than another. Where the turn begins is drawn from the test's name.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text):
        """Read `K/N`.

        Raises:
            argparse.ArgumentTypeError: the text is not two integers with 0 <= K < N.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise argparse.ArgumentTypeError(f"a slice is K/N with 0 <= K < N, as 3/70 (given: {text!r})")
        return cls(int(number), int(count))

    def takes(self, test, position):
        """Whether this slice has a case of a test.

        Args:
            test: the name of the test, without the case.
            position: of the case among those of the test, from 0.
        """
        return (zlib.crc32(test.encode()) + position) % self.count == self.number

    def every(self, turns):
        """The slice of `turns`, at most `count`, that this one stands for: as many runs in a row take all of them."""
        return Slice(self.number % turns, turns)

    def beneath(self, turns):
        """The slice for a run that a case of `every(turns)` begins: all slices with that case take all, as one case.

        Where `turns` does not divide `count`, some take one slice fewer.
        """
        return Slice(self.number // turns, -(-self.count // turns))

    def __str__(self):
        return f"{self.number}/{self.count}"


class Choice:
    """Which cases a run leaves out, as it comes to them one after another.

    Args:
        full: leave out none.
        part: the slice of the run; None: it has none.
    """

    def __init__(self, full, part):
        self._full, self._part = full, part
        self._seen = Counter()

    def leaves_out(self, item):
        """Whether the run leaves out a case, an item of pytest's."""
        dear, turns = (item.get_closest_marker(name) for name in ("full", "in_turns"))
        if self._full or not (dear or (turns and self._part)):
            return False
        test = item.nodeid.partition("[")[0]
        position = self._seen[test, bool(dear)]
        self._seen[test, bool(dear)] += 1
        part = self._part if dear else self._part.every(*turns.args)
        return not (part and part.takes(test, position))
