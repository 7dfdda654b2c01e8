"""Which of the cases marked `full` a run takes: all, none, or one slice of them."""

import argparse
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """Slice `number` of `count`: every test belongs to one slice by a checksum of its name, whatever else is added."""

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

    def __contains__(self, name):
        return zlib.crc32(name.encode()) % self.count == self.number

    def __str__(self):
        return f"{self.number}/{self.count}"
