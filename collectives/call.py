"""One call of a collective on one rank: its turn, and the peers with which it has compared signatures.

    enter     wait for the group's turn; begin to watch the time (see `WaitCheck`)
    greet     the first bytes to and from each peer bring the signatures of both; unequal ones end the call
    leave     give the turn back; a call that fails breaks the group, but sends the others nothing: the owner of
              the transport aborts it

Nothing is sent beside the collective's own bytes, and no task or timer is made, unless a call waits long.
"""

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from collectives.fifo_lock import FifoLock
from collectives.signature import GREETING_BYTES, Mismatch, greeting, signature_in
from transports.base import Key, Transport
from transports.errors import TransportError

PATIENCE_S = 10.0
"""Seconds that a rank waits in a call before it sends its call to the first rank."""
STILL_S = 10.0
"""Seconds in which all ranks wait and none receives a byte, after which calls of different numbers count as unequal."""


class Call:
    """An async context in which a collective runs on a group; entered once.

    Args:
        calls: those of the group.
        signature: what all of them must mean alike, in words.
    Attributes:
        asked: the signature as the call began.
        number: how many calls of the group began before, and this one.
        task: in which it runs.
    Raises:
        BrokenGroup: an earlier call was left before its end; nothing was sent.
        Mismatch: ranks called it differently (both are named). PeerLost: a rank of the group that this one waits for
            was lost. PeerAborted: the owner of another rank's transport aborted it.
    """

    __slots__ = ("_greeted", "_heard", "asked", "calls", "greeting", "number", "signature", "task")

    def __init__(self, calls: "Calls", signature: str):
        self.calls, self.asked = calls, signature
        self.state(signature)
        self._greeted: set[int] = set()
        self._heard: set[int] = set()

    async def __aenter__(self) -> "Call":
        calls = self.calls
        if not calls.lock.take_now():
            await calls.lock.take()
        calls.number += 1
        calls.current, self.number = self, calls.number
        self.task = asyncio.current_task()
        calls.wait_check.begin(self)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.calls.wait_check.end(error)
        except BaseException as found:
            error = found
            raise
        finally:
            self.calls.current = None
            self.calls.lock.give(error)

    def state(self, signature: str) -> None:
        """Say more exactly what this call is; before anything was sent."""
        self.signature, self.greeting = signature, greeting(signature)

    def greets(self, peer: int) -> bool:
        """Whether this rank of the transport has not been greeted yet; it counts as greeted from now on."""
        first = peer not in self._greeted
        self._greeted.add(peer)
        return first

    def hears(self, peer: int) -> bool:
        """Whether this peer's greeting is still to come; it counts as expected from now on."""
        first = peer not in self._heard
        self._heard.add(peer)
        return first

    def compare(self, peer: int, greeted: memoryview) -> None:
        """Raise Mismatch unless this peer's greeting says what ours says."""
        if greeted[:GREETING_BYTES] != self.greeting:
            raise Mismatch.between(self.calls.rank, self.signature, peer, signature_in(greeted))


class WaitCheck:
    """Ends ranks that wait for one another in unequal calls, where no greeting compares the two.

    A rank that waits longer than its patience sends its call to the group's first rank, and again after `STILL_S`
    seconds, twice that, and so on. The first rank keeps the latest call of each rank; when it waits that long itself,
    it compares them with its own:

        calls of one number that differ     end at once
        calls of different numbers          end when all ranks waited in theirs at once for `STILL_S`, and none received
                                            a byte: a rank may be ahead in good order while another one is late

    One timer outlasts all calls: one for each would cost 2 microseconds a call.

    Args:
        ranks: those of the group; the first of them compares.
        key: under which the others send it their calls.
        patience: seconds.
    """

    def __init__(self, transport: Transport, ranks: Sequence[int], key: Key, patience: float):
        self._transport, self._ranks, self._key, self._patience = transport, ranks, key, patience
        self._call, self._due, self._loop, self._cancelling = None, 0.0, None, 0
        self._task: asyncio.Task[None] | None = None
        self._latest: dict[int, Any] = {}
        self._waited: dict[int, tuple[float, float]] = {}
        self._found: Mismatch | None = None

    def begin(self, call: Call) -> None:
        """Watch the call from now on."""
        loop = asyncio.get_running_loop()
        self._call, self._due, self._cancelling = call, loop.time() + self._patience, call.task.cancelling()
        if self._loop is not loop:
            self._arm(loop)

    async def end(self, error: BaseException | None) -> None:
        """Watch the call no more. On the first rank take what was sent in it, so that no message is left behind.

        Raises:
            Mismatch: another rank's call differs; this call's task was cancelled for it.
        """
        call, self._call = self._call, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._found is not None and call.task.uncancel() == self._cancelling:
            raise self._found from None
        while error is None and self._transport.rank == self._ranks[0] and self._transport.holds(None, self._key):
            await self._read()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.call_at(self._due, self._look)

    def _look(self) -> None:
        loop, self._loop = self._loop, None
        if self._call is not None and loop.time() < self._due:
            self._arm(loop)
        elif self._call is not None:
            late = self._compare if self._transport.rank == self._ranks[0] else self._send
            self._task = loop.create_task(late(self._call))

    async def _send(self, call: Call) -> None:
        pause = STILL_S
        with suppress(TransportError):  # the call itself fails likewise, or needs the first rank no more
            while True:
                await self._transport.send(self._ranks[0], self._key, note=self._note(call))
                await asyncio.sleep(pause)
                pause *= 2

    def _note(self, call: Call) -> list[Any]:
        return [call.number, call.asked, call.signature, self._transport.traffic.bytes_received]

    async def _compare(self, call: Call) -> None:
        with suppress(TransportError):
            while True:
                self._keep(self._transport.rank, self._note(call))
                self._found = self._unequal(call) or self._apart(call)
                if self._found is not None:
                    call.task.cancel()
                    return
                await self._read()

    async def _read(self) -> None:
        message = await self._transport.receive(None, self._key)
        self._keep(message.source, message.note)

    def _keep(self, rank: int, note: Any) -> None:
        """Keep a rank's latest call, and since when it is the same to the last byte received."""
        now = asyncio.get_running_loop().time()
        same = rank in self._waited and self._latest[rank] == note
        self._waited[rank] = (self._waited[rank][0] if same else now), now
        self._latest[rank] = note

    def _unequal(self, call: Call) -> Mismatch | None:
        """What differs; two ranks of which one has yet to choose an algorithm may still choose alike."""
        for rank, note in self._latest.items():
            match note:
                case [call.number, str(asked), str(signature), _]:
                    both_chose = signature != asked and call.signature != call.asked
                    if asked != call.asked or (both_chose and signature != call.signature):
                        return Mismatch.between(self._transport.rank, call.signature, rank, signature)
        return None

    def _apart(self, call: Call) -> Mismatch | None:
        """Another rank's call of another number, once all ranks have waited at the same time.

        This rank's own time counts from the start of its waiting, so what other ranks sent before that proves nothing.
        """
        since, last = zip(*self._waited.values(), strict=True)
        if len(since) < len(self._ranks) or min(last) - max(since) < STILL_S:
            return None
        for rank, note in self._latest.items():
            match note:
                case [int(number), _, str(signature), _] if number != call.number:
                    mine = f"call {call.number}, {call.signature}"
                    return Mismatch.apart(self._transport.rank, mine, rank, f"call {number}, {signature}")
        return None


class Calls:
    """The calls of one group on one rank, one at a time.

    Args:
        transport: this rank's end of the network.
        ranks: the transport's ranks that are in the group.
        channel: the group's.
        patience: seconds (see `WaitCheck`).
    Attributes:
        current: the running call.
        number: how many calls have begun.
    """

    def __init__(self, transport: Transport, ranks: Sequence[int], channel: int, patience: float):
        self.rank, self.current, self.number = transport.rank, None, 0
        self.current: Call | None
        self.lock = FifoLock(f"Group(ranks={ranks}, channel={channel})")
        name = "collective", channel, zlib.crc32(repr(ranks).encode())
        key = *name, transport.count(name)  # neither another group's nor an earlier one's of these ranks
        self.wait_check = WaitCheck(transport, ranks, key, patience)
