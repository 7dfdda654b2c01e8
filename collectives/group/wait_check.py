"""The check of calls that wait for long: ranks that called different things may wait for one another for ever."""

import asyncio
from contextlib import suppress
from typing import Any

from collectives.errors import Mismatch
from collectives.group.call import Call
from collectives.group.identity import GroupIdentity
from transports.base import Key
from transports.errors import TransportError

STALL_S = 10.0
"""Seconds for which all ranks wait and no rank receives a byte; after that, calls of different numbers are unequal."""


class WaitCheck:
    """Ends calls in which ranks wait for one another because they called different things and exchange no fingerprint.

    A rank that waits longer than its patience reports its call to the first rank of the group, and again after
    `STALL_S` seconds, twice that, and so on. The first rank keeps the latest call of each rank. When it waits that long
    itself, it compares them with its own:

        calls of one number that differ     end at once
        calls of different numbers          end when all ranks have waited at the same time for `STALL_S`, and no byte
                                            came (`Transport.activity`): a correct rank may be ahead of a slow one

    One timer serves all calls: a timer for each call would cost 2 microseconds a call.

    Args:
        identity: the ranks of the group; the first of them compares.
        key: the key under which the others send their calls to it.
        patience: seconds.
    """

    def __init__(self, identity: GroupIdentity, key: Key, patience: float):
        self._identity, self._key, self._patience = identity, key, patience
        self._call: Call | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at, self._cancelling = 0.0, 0
        self._task: asyncio.Task[None] | None = None
        self._latest_notes: dict[int, Any] = {}
        self._waited: dict[int, tuple[float, float]] = {}
        self._mismatch: Mismatch | None = None

    def start(self, call: Call) -> None:
        """Start the check for this call."""
        loop = asyncio.get_running_loop()
        self._call = call
        self._due_at = loop.time() + self._patience
        self._cancelling = call.task.cancelling()
        if self._loop is not loop:
            self._arm(loop)

    async def stop(self, error: BaseException | None) -> None:
        """Stop the check. The first rank receives the remaining reports of this call, so that no message is left over.

        After an error no timer is left: it would keep the transport, and with the error what was exchanged.

        Raises:
            Mismatch: the call of another rank differs; for that reason the task of this call was cancelled.
        """
        call, self._call = self._call, None
        if error is not None and self._timer is not None:
            self._timer.cancel()
            self._loop = self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._mismatch is not None and call is not None and call.task.uncancel() == self._cancelling:
            raise self._mismatch from None
        while error is None and self._identity.rank == 0 and self._identity.transport.probe(None, self._key):
            await self._read()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_at(self._due_at, self._on_timer)

    def _on_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = None
        if self._call is not None and loop.time() < self._due_at:
            self._arm(loop)
        elif self._call is not None:
            work = self._compare if self._identity.rank == 0 else self._send
            self._task = loop.create_task(work(self._call))

    async def _send(self, call: Call) -> None:
        pause = STALL_S
        with suppress(TransportError):  # the call itself fails in the same way, or does not need the first rank
            while True:
                await self._identity.transport.send(self._identity.ranks[0], self._key, note=self._note(call))
                await asyncio.sleep(pause)
                pause *= 2

    def _note(self, call: Call) -> list[Any]:
        return [call.number, str(call.requested), str(call.signature), self._identity.transport.activity]

    async def _compare(self, call: Call) -> None:
        """Compare this call with the notes of the other ranks as they arrive; cancel it where they cannot agree."""
        with suppress(TransportError):
            while True:
                self._keep(self._identity.transport.rank, self._note(call))
                self._mismatch = self._find_mismatch(call) or self._find_stuck(call)
                if self._mismatch is not None:
                    call.task.cancel()
                    return
                await self._read()

    async def _read(self) -> None:
        message = await self._identity.transport.receive(None, self._key)
        self._keep(message.source, message.note)

    def _keep(self, rank: int, note: Any) -> None:
        """Keep the latest call of a rank, and the time since which neither it nor `Transport.activity` changed."""
        now = asyncio.get_running_loop().time()
        is_same = rank in self._waited and self._latest_notes[rank] == note
        self._waited[rank] = (self._waited[rank][0] if is_same else now), now
        self._latest_notes[rank] = note

    def _find_mismatch(self, call: Call) -> Mismatch | None:
        """The error for a differing call of the same number.

        If one of two ranks has not yet chosen its algorithm, both may still choose the same: that is no difference.
        """
        own_request, own_signature = str(call.requested), str(call.signature)
        for rank, note in self._latest_notes.items():
            match note:
                case [call.number, str(requested), str(signature), _]:
                    both_chose = signature != requested and own_signature != own_request
                    if requested != own_request or (both_chose and signature != own_signature):
                        return Mismatch.between(self._identity.transport.rank, own_signature, rank, signature)
        return None

    def _find_stuck(self, call: Call) -> Mismatch | None:
        """The error for a call of another number, once all ranks have waited at the same time.

        Only reports received since this rank began to wait count.
        """
        starts, ends = zip(*self._waited.values(), strict=True)
        if len(starts) < self._identity.size or min(ends) - max(starts) < STALL_S:
            return None
        for rank, note in self._latest_notes.items():
            match note:
                case [int(number), _, str(signature), _] if number != call.number:
                    own_call = f"call {call.number}, {call.signature}"
                    return Mismatch.apart(self._identity.transport.rank, own_call, rank, f"call {number}, {signature}")
        return None
