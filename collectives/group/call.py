"""One call of a collective on one rank, and the peers with which it has compared signatures.

The first bytes to and from each peer carry the sender's signature; unequal signatures end the call.
"""

import asyncio
from typing import Any

from collectives.errors import Mismatch
from collectives.group.signature import FINGERPRINT_BYTES, Signature, refined, signature_text


class Call:
    """One call on this rank.

    Args:
        rank: this rank in the transport, for errors.
        signature: the collective and its arguments; must be equal on all ranks.
    Attributes:
        requested: the signature at the start of the call.
        signature, fingerprint: the present signature, and its bytes.
        number: the number of this call in the group, from 1.
        task: the task in which the call runs.
    """

    __slots__ = ("_rank", "_received_from", "_sent_to", "fingerprint", "number", "requested", "signature", "task")

    number: int
    task: asyncio.Task[Any]

    def __init__(self, rank: int, signature: Signature):
        self._rank, self.requested = rank, signature
        self.signature, self.fingerprint = signature, signature.fingerprint
        self._sent_to: set[int] = set()
        self._received_from: set[int] = set()

    def refine(self, **changes: Any) -> None:
        """Replace fields of the signature by more exact ones, as the algorithm that `auto` has chosen.

        Raises:
            RuntimeError: another rank has already compared the signature, or sent its own.
        """
        if self._sent_to or self._received_from:
            raise RuntimeError(f"the signature of a call was sent already ({self.signature}); refine it before that")
        self.signature = refined(self.signature, **changes)
        self.fingerprint = self.signature.fingerprint

    def mark_sent(self, peer: int) -> bool:
        """Record a message to this peer, a rank of the transport. Returns whether it is the first of the call."""
        is_first = peer not in self._sent_to
        self._sent_to.add(peer)
        return is_first

    def mark_received(self, peer: int) -> bool:
        """Record a message from this peer. Returns whether it is the first: it then carries the peer's fingerprint."""
        is_first = peer not in self._received_from
        self._received_from.add(peer)
        return is_first

    def compare(self, peer: int, fingerprint: memoryview, signature: Signature | None = None) -> None:
        """Raise Mismatch unless the fingerprint of this peer is that of the expected signature; None: of the call's."""
        if fingerprint[:FINGERPRINT_BYTES] != (signature.fingerprint if signature else self.fingerprint):
            raise Mismatch.between(self._rank, signature or self.signature, peer, signature_text(fingerprint))
