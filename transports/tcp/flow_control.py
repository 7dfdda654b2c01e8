"""Flow control to one peer: credit for messages sent before their receive is posted, and offers beyond the credit.

A sender spends credit for each unexpected message, and regains it when the receiver reports that it consumed the
message. A message beyond the limit is offered instead: its body stays at the sender, under a number, until the receiver
requests it. So no message waits for credit behind another one. Offers have their own limit, beyond which the send
fails: a send that waited there could wait for ever, because the receiver may wait for a message that is not offered
yet. An offered message is delivered when requested, even if the task that sent it was cancelled.

The cost of a message is the memory that it takes at the receiver, header included; both ends compute the same number. A
receiver checks its peer's count against its own. No I/O.
"""

import asyncio
from collections.abc import Sequence

from transports.aio.futures import resolve
from transports.errors import TransportError, WireError
from transports.stream.writer import OutgoingFrame
from transports.wire.frames import NUMBERS
from transports.wire.number_pool import NumberPool

ALL_PEERS_BYTES = 256 << 20
MIN_BYTES = 1 << 20
OFFERS_BYTES = 16 << 20  # minimum limit of offers to one peer, enough for about 4,000
CLOSING_BYTES = 256 << 20  # offered bodies that a closing rank delivers to each peer without a posted receive
MAX_OFFERS = NUMBERS  # open offers to one peer


def credit_limit(world_size: int) -> int:
    """The bytes that one peer may keep at a rank: its share of 256 MiB, but at least 1 MiB."""
    return max(MIN_BYTES, ALL_PEERS_BYTES // max(1, world_size - 1))


class Credit:
    """One rank's credit with one peer, in both directions. All numbers are bytes, `header_memory` included.

    Args:
        max_bytes: in each direction; the same at both ends.
    """

    __slots__ = ("_consumed_bytes", "_max_bytes", "_received_bytes", "_spent_bytes")

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._spent_bytes = self._received_bytes = self._consumed_bytes = 0

    def __str__(self) -> str:
        return f"{self._spent_bytes} bytes, most: {self._max_bytes}"

    def acquire(self, nbytes: int) -> bool:
        """Spend `nbytes` bytes of credit; returns False, and spends nothing, if that exceeds the limit."""
        if self._spent_bytes + nbytes > self._max_bytes:
            return False
        self._spent_bytes += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Take back spent credit: the message was not sent after all, or the peer requested it."""
        self._spent_bytes -= nbytes

    def on_credit(self, nbytes: object) -> None:
        """Regain `nbytes` bytes that the peer reports as consumed.

        Raises:
            WireError: more than was spent, or not a number.
        """
        if type(nbytes) is not int or not 0 < nbytes <= self._spent_bytes:
            raise WireError(
                f"more credit than was spent (credit: {nbytes!r}, bytes sent unexpected: {self._spent_bytes})"
            )
        self._spent_bytes -= nbytes

    def on_received(self, nbytes: int) -> None:
        """Count `nbytes` bytes that came unexpected.

        Raises:
            WireError: the peer has exceeded its limit.
        """
        self._received_bytes += nbytes
        if self._received_bytes > self._max_bytes:
            raise WireError(
                f"more unexpected messages than are kept here (bytes: {self._received_bytes}, limit: {self._max_bytes})"
            )

    def on_fetched(self, nbytes: int) -> None:
        """Count `nbytes` bytes less: they are no longer kept here, and the peer knows that without a credit frame."""
        self._received_bytes -= nbytes

    def on_consumed(self, nbytes: int) -> int:
        """Account for a consumed unexpected message. Returns the credit to send back, usually 0.

        Credit is returned in few large amounts: a quarter of the limit.
        """
        self._consumed_bytes += nbytes
        if 4 * self._consumed_bytes < self._max_bytes:
            return 0
        credit, self._consumed_bytes = self._consumed_bytes, 0
        self._received_bytes -= credit
        return credit


class Offer:
    """The body of an offered message, and its sender's future, done when the memory may be reused.

    Args:
        header_bytes: bytes that the offer takes at the receiver, by `transports.stream.incoming.header_memory`.
    """

    __slots__ = ("frame", "header_bytes", "nbytes", "reusable", "views")

    def __init__(self, views: Sequence[memoryview], header_bytes: int):
        self.header_bytes = header_bytes
        self.views = list(views)
        self.nbytes = sum(view.nbytes for view in views)
        self.frame: OutgoingFrame | None = None
        self.reusable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start_writing(self, frame: OutgoingFrame | None) -> None:
        """The body is being written: its memory is free when `frame` is written (None: it is written already)."""
        if frame is None:
            return self.resolve()
        self.frame = frame
        frame.written.add_done_callback(
            lambda written: self.resolve(None if written.cancelled() else written.exception())
        )

    def copy_data(self) -> None:
        """The sender was cancelled: continue from a copy."""
        if self.frame is not None:
            self.frame.copy_data()
        self.views = [memoryview(bytes(view)) for view in self.views]

    def resolve(self, error: BaseException | None = None) -> None:
        resolve(self.reusable, error)


class OfferTable:
    """All offers to one peer, by number.

    Args:
        credit: counts the memory that the offers take at the peer.
    """

    def __init__(self, credit: Credit):
        self._credit = credit
        self._offers: dict[int, Offer] = {}
        self._numbers = NumberPool("messages at their sender that no receive has requested", MAX_OFFERS)

    def put(self, offer: Offer) -> int:
        """Store an offer; returns its number.

        Raises:
            TransportError: no number is free, or the offers would exceed their limit at the peer.
        """
        number = self._numbers.allocate()
        if not self._credit.acquire(offer.header_bytes):
            self._numbers.release(number)
            raise TransportError(
                f"too much memory at the receiver for messages that no receive has requested (messages: "
                f"{len(self._offers)}, headers: {self._credit}); await some first"
            )
        self._offers[number] = offer
        return number

    def pop(self, number: int) -> Offer:
        """Remove and return the offer with this number; raises WireError for an unknown number."""
        if number not in self._offers:
            raise WireError(f"CTS for an unknown offer (number: {number})")
        offer = self._offers.pop(number)
        self._numbers.release(number)
        self._credit.release(offer.header_bytes)
        return offer

    def clear(self) -> dict[int, Offer]:
        """Remove and return all offers."""
        offers, self._offers = self._offers, {}
        return offers
