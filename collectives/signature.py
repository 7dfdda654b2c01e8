"""The signature of a collective call, equal on all ranks of the group, and the greeting by which each pair compares it.

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
    def between(cls, mine: int, signature: str, other: int, others_signature: str) -> "Mismatch":
        """The error that names both signatures."""
        fact = f"ranks call one collective differently (rank {mine}: {signature}; rank {other}: {others_signature})"
        return cls(f"{fact}; give all ranks of the group equal arguments")

    @classmethod
    def apart(cls, mine: int, call: str, other: int, others_call: str) -> "Mismatch":
        """The error that names two calls of different numbers, given in words."""
        fact = f"ranks wait for one another in different calls (rank {mine}: {call}; rank {other}: {others_call})"
        return cls(f"{fact}; call the group's collectives equally often and in one order on all of its ranks")


@lru_cache(maxsize=1024)
def greeting(signature: str) -> bytes:
    """The signature in `GREETING_BYTES`; of a longer one only the checksum covers the end."""
    text = signature.encode()
    return text[:TEXT_BYTES].ljust(TEXT_BYTES) + zlib.crc32(text).to_bytes(4, "big")


def signature_in(greeted: bytes | bytearray | memoryview) -> str:
    """The signature in a greeting, as far as it fits."""
    return bytes(greeted[:TEXT_BYTES]).decode(errors="replace").rstrip()
