"""The signature of a collective call, equal on all ranks of the group, and the greeting by which two ranks compare it.

A rank uses bytes from a peer only after it has compared the peer's greeting, and the result of an all-reduce depends on
every rank. So if two ranks call different things, no rank gets a result: on every path of bytes between the two, one
pair of ranks has compared. A rank that only sends, such as the root of a broadcast, returns without noticing.
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
        """The error that names two calls of different numbers."""
        fact = f"ranks wait for one another in different calls (rank {mine}: {call}; rank {other}: {others_call})"
        return cls(f"{fact}; call the group's collectives equally often and in one order on all of its ranks")


@lru_cache(maxsize=1024)
def greeting(signature: str) -> bytes:
    """The signature in `GREETING_BYTES`; a longer one is cut, but the checksum covers all of it."""
    text = signature.encode()
    return text[:TEXT_BYTES].ljust(TEXT_BYTES) + zlib.crc32(text).to_bytes(4, "big")


def signature_in(greeted: bytes | bytearray | memoryview) -> str:
    """The signature in a greeting, cut to `TEXT_BYTES`."""
    return bytes(greeted[:TEXT_BYTES]).decode(errors="replace").rstrip()
