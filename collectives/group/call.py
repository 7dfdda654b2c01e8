"""One call of a collective on one rank: its lock, and the peers with which it has compared signatures.

    enter     wait for the group's lock; start the check of its waiting time (see `WaitCheck`)
    compare   the first bytes to and from each peer carry the sender's signature; unequal signatures end the call
    leave     release the lock; a failed call breaks the group on this rank and sends nothing: the owner of the
              transport must abort it

Unless a call waits long, it sends only the collective's own bytes and creates no task and no timer.
"""

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from collectives.group.fifo_lock import FifoLock
from collectives.group.signature import FINGERPRINT_BYTES, Mismatch, Signature, signature_text
from transports.aio.event_loop import this_task
from transports.base import Key, Transport
from transports.errors import TransportError

PATIENCE_S = 10.0
"""Seconds that a rank waits in a call before it reports its call to the first rank."""
STALL_S = 10.0
"""Seconds for which all ranks wait and no rank receives a byte; after that, calls of different numbers are unequal."""


class Unsupported(ValueError):
    """The group's transport cannot run this call. All ranks refuse it alike, so the group stays usable."""


class Call:
    """An async context in which a collective runs on a group; entered once.

    Args:
        calls: the calls of the group.
        signature: the collective and its arguments; must be equal on all ranks.
    Attributes:
        requested: the signature at the start of the call.
        signature, fingerprint: the present signature, and its bytes.
        number: the number of this call in the group, from 1.
        task: the task in which the call runs.
    Raises:
        BrokenGroup: an earlier call ended before it was done; nothing was sent.
        Mismatch: ranks called it differently (both are named). PeerLost: a rank of the group that this one waits for
            was lost. PeerAborted: the owner of another rank's transport aborted it.
    """

    __slots__ = ("_received_from", "_sent_to", "calls", "fingerprint", "number", "requested", "signature", "task")

    def __init__(self, calls: "CallSequence", signature: Signature):
        self.calls, self.requested = calls, signature
        self.signature, self.fingerprint = signature, signature.fingerprint
        self._sent_to: set[int] = set()
        self._received_from: set[int] = set()

    async def __aenter__(self) -> "Call":
        calls = self.calls
        if not calls.lock.acquire_nowait():
            await calls.lock.acquire()
        calls.number += 1
        calls.current, self.number = self, calls.number
        self.task = this_task()
        calls.wait_check.begin(self)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Unsupported):
            error = None
        try:
            await self.calls.wait_check.end(error)
        except BaseException as found:
            error = found
            raise
        finally:
            self.calls.current = None
            self.calls.lock.release(error)

    def refine(self, signature: Signature) -> None:
        """Replace the signature by a more exact one, as the algorithm that `auto` has chosen.

        Raises:
            RuntimeError: another rank has already compared the signature, or sent its own.
        """
        if self._sent_to or self._received_from:
            raise RuntimeError(f"the signature of a call was sent already ({self.signature}); refine it before that")
        self.signature, self.fingerprint = signature, signature.fingerprint

    def first_to(self, peer: int) -> bool:
        """Whether this is the first message of the call to this peer, a rank of the transport; later ones are not."""
        first = peer not in self._sent_to
        self._sent_to.add(peer)
        return first

    def first_from(self, peer: int) -> bool:
        """Whether this is the first message of the call from this peer; it then carries the peer's fingerprint."""
        first = peer not in self._received_from
        self._received_from.add(peer)
        return first

    def compare(self, peer: int, received: memoryview, expected: Signature | None = None) -> None:
        """Raise Mismatch unless the fingerprint of this peer is that of the expected signature; None: of the call's."""
        if received[:FINGERPRINT_BYTES] != (expected.fingerprint if expected else self.fingerprint):
            raise Mismatch.between(self.calls.rank, expected or self.signature, peer, signature_text(received))


class WaitCheck:
    """Ends calls in which ranks wait for one another because they called different things and exchange no fingerprint.

    A rank that waits longer than its patience reports its call to the first rank of the group, and again after
    `STALL_S` seconds, twice that, and so on. The first rank keeps the latest call of each rank. When it waits that long
    itself, it compares them with its own:

        calls of one number that differ     end at once
        calls of different numbers          end when all ranks have waited at the same time for `STALL_S` and no rank
                                            received a byte: until then, a correct rank may be ahead of a slow one

    One timer serves all calls: a timer for each call would cost 2 microseconds a call.

    Args:
        ranks: the ranks of the group; the first of them compares.
        key: the key under which the others send their calls to it.
        patience: seconds.
    """

    def __init__(self, transport: Transport, ranks: Sequence[int], key: Key, patience: float):
        self._transport, self._ranks, self._key, self._patience = transport, ranks, key, patience
        self._call: Call | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due, self._cancelling = 0.0, 0
        self._task: asyncio.Task[None] | None = None
        self._latest: dict[int, Any] = {}
        self._waited: dict[int, tuple[float, float]] = {}
        self._found: Mismatch | None = None

    def begin(self, call: Call) -> None:
        """Start the check for this call."""
        loop = asyncio.get_running_loop()
        self._call, self._due, self._cancelling = call, loop.time() + self._patience, call.task.cancelling()
        if self._loop is not loop:
            self._arm(loop)

    async def end(self, error: BaseException | None) -> None:
        """End the check. The first rank receives the remaining reports of this call, so that no message is left over.

        Raises:
            Mismatch: the call of another rank differs; for that reason the task of this call was cancelled.
        """
        call, self._call = self._call, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._found is not None and call is not None and call.task.uncancel() == self._cancelling:
            raise self._found from None
        while error is None and self._transport.rank == self._ranks[0] and self._transport.probe(None, self._key):
            await self._read()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        loop, self._loop = asyncio.get_running_loop(), None
        if self._call is not None and loop.time() < self._due:
            self._arm(loop)
        elif self._call is not None:
            late = self._compare if self._transport.rank == self._ranks[0] else self._send
            self._task = loop.create_task(late(self._call))

    async def _send(self, call: Call) -> None:
        pause = STALL_S
        with suppress(TransportError):  # the call itself fails in the same way, or does not need the first rank
            while True:
                await self._transport.send(self._ranks[0], self._key, note=self._note(call))
                await asyncio.sleep(pause)
                pause *= 2

    def _note(self, call: Call) -> list[Any]:
        return [call.number, str(call.requested), str(call.signature), self._transport.traffic.bytes_received]

    async def _compare(self, call: Call) -> None:
        with suppress(TransportError):
            while True:
                self._keep(self._transport.rank, self._note(call))
                self._found = self._find_mismatch(call) or self._find_stuck(call)
                if self._found is not None:
                    call.task.cancel()
                    return
                await self._read()

    async def _read(self) -> None:
        message = await self._transport.receive(None, self._key)
        self._keep(message.source, message.note)

    def _keep(self, rank: int, note: Any) -> None:
        """Keep the latest call of a rank, and the time since which neither the call nor its received bytes changed."""
        now = asyncio.get_running_loop().time()
        same = rank in self._waited and self._latest[rank] == note
        self._waited[rank] = (self._waited[rank][0] if same else now), now
        self._latest[rank] = note

    def _find_mismatch(self, call: Call) -> Mismatch | None:
        """The error for a differing call of the same number.

        If one of two ranks has not yet chosen its algorithm, both may still choose the same: that is no difference.
        """
        asked, mine = str(call.requested), str(call.signature)
        for rank, note in self._latest.items():
            match note:
                case [call.number, str(requested), str(signature), _]:
                    both_chose = signature != requested and mine != asked
                    if requested != asked or (both_chose and signature != mine):
                        return Mismatch.between(self._transport.rank, mine, rank, signature)
        return None

    def _find_stuck(self, call: Call) -> Mismatch | None:
        """The error for a call of another number, once all ranks have waited at the same time.

        Only reports received since this rank began to wait count.
        """
        since, last = zip(*self._waited.values(), strict=True)
        if len(since) < len(self._ranks) or min(last) - max(since) < STALL_S:
            return None
        for rank, note in self._latest.items():
            match note:
                case [int(number), _, str(signature), _] if number != call.number:
                    mine = f"call {call.number}, {call.signature}"
                    return Mismatch.apart(self._transport.rank, mine, rank, f"call {number}, {signature}")
        return None


class CallSequence:
    """The calls of one group on one rank, one at a time.

    Args:
        transport: this rank's end of the network.
        ranks: the transport's ranks that are in the group.
        channel: the channel of the group.
        patience: seconds (see `WaitCheck`).
    Attributes:
        current: the running call, or None.
        number: calls begun so far.
    """

    def __init__(self, transport: Transport, ranks: Sequence[int], channel: int, patience: float):
        self.rank, self.number = transport.rank, 0
        self.current: Call | None = None
        self.lock = FifoLock(f"Group(ranks={ranks}, channel={channel})")
        name = "collective", channel, zlib.crc32(repr(ranks).encode())
        key = *name, transport.next_serial(name)  # differs from the keys of other groups, also of earlier ones
        self.wait_check = WaitCheck(transport, ranks, key, patience)

    @property
    def running(self) -> Call:
        """The running call.

        Raises:
            RuntimeError: there is none.
        """
        if self.current is None:
            raise RuntimeError("no collective is running on this group; use its messages inside `group.call`")
        return self.current
