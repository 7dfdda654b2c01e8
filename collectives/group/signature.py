"""The signature of a collective call, equal on all ranks of the group, and the fingerprint that two ranks compare.

A rank uses bytes from a peer only after it has compared the peer's fingerprint, and the result of an all-reduce
depends on every rank. So if two ranks call different things, no rank gets a result: somewhere on each path of data
between them, two neighbours compare signatures and stop. A rank that only sends, such as the root of a broadcast,
returns without noticing.
"""

import zlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

FINGERPRINT_BYTES = 64
TEXT_BYTES = FINGERPRINT_BYTES - 4


@dataclass(frozen=True)
class Signature:
    """A collective and the arguments that all ranks must give equally; as text "all_reduce by ring: sum of 8 float32".

    Args:
        collective: its name; for a broadcast with the root.
        op: of a reduction, with its accumulation if that is not the array's dtype.
        length, dtype: of the array; None and "" if there is none.
        algorithm: the one requested; "" if the collective has no choice.
        chosen: the algorithm that `auto` has chosen; "" before that.
        memory_label: `SymmetricView.label` of an array in memory that all ranks map; "" if it lies elsewhere.
        lengths: the elements of each rank's segment; None if the array is cut evenly.
    """

    collective: str
    op: str = ""
    length: int | None = None
    dtype: str = ""
    algorithm: str = ""
    chosen: str = ""
    memory_label: str = ""
    lengths: tuple[int, ...] | None = None

    def __str__(self) -> str:
        parts = [
            self.collective,
            f" in {self.memory_label}" if self.memory_label else "",
            f" by {self.algorithm}" if self.algorithm else "",
            f", {self.chosen}" if self.chosen else "",
            f": {self.op}" if self.op else "",
            "" if self.length is None else f" of {self.length} {self.dtype}",
            "" if self.lengths is None else f" cut {'+'.join(map(str, self.lengths))}",
        ]
        return "".join(parts)

    @cached_property
    def fingerprint(self) -> bytes:
        """The text in `FINGERPRINT_BYTES`; a longer one is cut, but the checksum covers all of it."""
        text = str(self).encode()
        return text[:TEXT_BYTES].ljust(TEXT_BYTES) + zlib.crc32(text).to_bytes(4, "big")


@lru_cache(maxsize=1024)
def refined(signature: Signature, **changes: Any) -> Signature:
    """A signature with other fields; the same object for equal arguments, as its fingerprint is computed once."""
    return replace(signature, **changes)


def signature_text(fingerprint: bytes | bytearray | memoryview) -> str:
    """The text of the signature in a fingerprint, cut to `TEXT_BYTES`."""
    return bytes(fingerprint[:TEXT_BYTES]).decode(errors="replace").rstrip()
