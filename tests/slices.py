"""Which of the cases marked `full` a run takes: all, none, or one slice of them."""

import argparse
import zlib
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

    def __str__(self):
        return f"{self.number}/{self.count}"
