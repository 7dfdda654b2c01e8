"""What the ranks of a group must mean alike when they call a collective, and the greeting by which each pair finds out.

What is received from a rank is used only after its greeting was compared, and the result of an all-reduce depends on
every rank. So where two ranks call different things, no rank ends with a result: on every way of the bytes from the one
to the other there is a pair that compared. A rank that only sends, as the root of a broadcast, returns without knowing.
Knows no messages.
"""

import zlib
from functools import lru_cache

GREETING_BYTES = 64
TEXT_BYTES = GREETING_BYTES - 4


class Mismatch(ValueError):
    """The ranks of a group called one collective with different arguments, or different collectives."""

    @classmethod
    def between(cls, mine: int, terms: str, other: int, others_terms: str) -> "Mismatch":
        """The error that names what both ranks said."""
        fact = f"ranks call one collective differently (rank {mine}: {terms}; rank {other}: {others_terms})"
        return cls(f"{fact}; give all ranks of the group equal arguments")

    @classmethod
    def apart(cls, mine: int, call: str, other: int, others_call: str) -> "Mismatch":
        """The error that names two calls of different numbers, given in words."""
        fact = f"ranks wait for one another in different calls (rank {mine}: {call}; rank {other}: {others_call})"
        return cls(f"{fact}; call the group's collectives equally often and in one order on all of its ranks")


@lru_cache(maxsize=1024)
def greeting(terms: str) -> bytes:
    """The terms in so many bytes; of longer ones only the checksum covers the end."""
    text = terms.encode()
    return text[:TEXT_BYTES].ljust(TEXT_BYTES) + zlib.crc32(text).to_bytes(4, "big")


def told(greeted: bytes | bytearray | memoryview) -> str:
    """The terms that a greeting tells, as far as they fit."""
    return bytes(greeted[:TEXT_BYTES]).decode(errors="replace").rstrip()
