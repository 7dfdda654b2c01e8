"""One call of a collective on one rank: its turn, whom it has compared terms with, and what happens when it goes wrong.

    enter     wait for the group's turn; set a timer
    greet     the first bytes to and from each peer bring the terms of both; other terms than ours end the call
    timer     a rank that still waits tells the group's first rank what it is doing, and listens: so ranks that wait for
              one another in different algorithms are found out, and a rank far from a failure hears of it
    leave     whoever fails tells all ranks of the group why, in its own time bounded, before it raises

The one rule: nothing is sent beside the collective's own bytes, and no task made, unless a call waits longer than
`patience` or fails. Statements carry the number of the call and the life of the group, so that none is ever taken for
another call's.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectives._terms import GREETING_BYTES, Mismatch, greeting, told
from collectives._together import together
from transports._errors import Closed, PeerAborted, PeerLost, TransportError

if TYPE_CHECKING:
    from collectives._group import Group

FAREWELL_S = 0.25
"""Longest time in which a rank that failed waits for its statements to leave."""
INQUEST_S = 1.0
"""Longest time in which a rank whose bytes did not fit listens for what the others meant."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one rank says of one call: its terms, and if it failed, why, and which rank of the transport was lost."""

    number: int
    terms: str
    failure: str | None = None
    lost: int | None = None
    final: bool = False

    @classmethod
    def of(cls, note: Any) -> "Statement":
        """Read what came; raises ValueError for anything else."""
        number, terms, failure, lost, final = note
        kinds = ((number, int), (terms, str), (failure, str | None), (lost, int | None), (final, bool))
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise ValueError(f"no statement of a rank ({note!r}); install one release on every rank")
        return cls(number, terms, failure, lost, final)

    @property
    def note(self) -> list[Any]:
        return [self.number, self.terms, self.failure, self.lost, self.final]


class Call:
    """An async context in which a collective runs on a group; entered once.

    Args:
        group: whose ranks call it.
        terms: what all of them must mean alike, in words.
    Raises:
        BrokenGroup: an earlier call was left before its end; nothing was sent.
        Mismatch: ranks called it differently (both are named). PeerLost: a rank of the group was lost, wherever in the
            group that was seen. TransportError: another rank failed in this call.
    """

    __slots__ = (
        "_greeted", "_group", "_heard", "_interrupted", "_known", "_number", "_task", "_timer",
        "_verdict", "_watch", "greeting", "terms",
    )  # fmt: skip

    def __init__(self, group: "Group", terms: str):
        self._group = group
        self.state(terms)
        self._greeted: set[int] = set()
        self._heard: set[int] = set()
        self._interrupted = self._known = False
        self._verdict: Exception | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Call":
        group = self._group
        await group.turn.take()
        group.calls += 1
        group.call, self._number = self, group.calls
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(group.patience, self._impatient)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        try:
            if self._watch is not None:
                await self._end_watch()
            if error is not None:
                await self._fail(error)
        finally:
            self._group.call = None
            self._group.turn.give(self._verdict or error)

    def state(self, terms: str) -> None:
        """Say more exactly what this call is; before anything was sent."""
        self.terms, self.greeting = terms, greeting(terms)

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
            raise Mismatch.between(self._group.transport.rank, self.terms, peer, told(greeted))

    def _impatient(self) -> None:
        if self._group.size > 1:
            self._watch = asyncio.get_running_loop().create_task(self._look_round())

    async def _look_round(self) -> None:
        """Say what this rank does, and listen, until something ends the call."""
        with suppress(TransportError):  # what the call itself waits for fails likewise, or it has all it needs
            await together(self._announce(), self._listen())

    async def _announce(self) -> None:
        if self._group.rank:
            with suppress(TransportError):
                await self._say(self._group.ranks[0], Statement(self._number, self.terms))

    async def _listen(self) -> None:
        self._verdict = await self._hear()
        self._interrupted = True
        self._task.cancel()

    async def _end_watch(self) -> None:
        self._watch.cancel()
        await asyncio.wait([self._watch])
        if not self._watch.cancelled() and (error := self._watch.exception()) is not None:
            raise error

    async def _fail(self, error: BaseException) -> None:
        """Tell the others, find out what is behind it, and raise that; a cancellation from outside just goes on."""
        if self._interrupted:
            self._task.uncancel()
        elif isinstance(error, TransportError | Mismatch):
            self._verdict = error
        else:
            return
        if isinstance(self._verdict, Closed | PeerAborted):
            return self._raise(error)
        inquest = type(self._verdict) is TransportError
        await together(self._tell_all(), self._inquire() if inquest else _nothing())
        self._raise(error)

    async def _inquire(self) -> None:
        """Bytes did not fit, here or elsewhere: find out whether that is because ranks meant different things."""
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(INQUEST_S):
                self._verdict = await self._hear(only_mismatch=True)

    def _raise(self, error: BaseException) -> None:
        if self._verdict is not error:
            raise self._verdict from (None if isinstance(error, asyncio.CancelledError) else error)

    async def _tell_all(self) -> None:
        if self._known:
            return
        verdict, lost = self._verdict, None
        if isinstance(verdict, PeerLost):
            lost = verdict.rank
        statement = Statement(self._number, self.terms, str(verdict), lost, isinstance(verdict, Mismatch))
        others = [rank for rank in self._group.ranks if rank not in (lost, self._group.transport.rank)]
        if others:
            saying = [asyncio.ensure_future(self._say(rank, statement)) for rank in others]
            try:
                await asyncio.wait(saying, timeout=FAREWELL_S)
            finally:
                for each in saying:
                    each.cancel()
                await asyncio.gather(*saying, return_exceptions=True)

    def _say(self, rank: int, statement: Statement) -> Awaitable[None]:
        return self._group.transport.send(rank, self._group.statements, note=statement.note)

    async def _hear(self, only_mismatch: bool = False) -> Exception:
        """What the first statement that ends this call says."""
        group = self._group
        heard = list(group.early)
        group.early.clear()
        while True:
            for source, statement in heard:
                verdict = self._judge(source, statement)
                if verdict is not None and (isinstance(verdict, Mismatch) or not only_mismatch):
                    return verdict
            frame = await group.transport.receive(None, group.statements)
            heard = [(frame.source, Statement.of(frame.note))]

    def _judge(self, source: int, statement: Statement) -> Exception | None:
        if statement.number > self._number:
            self._group.early.append((source, statement))
            return None
        if statement.number == self._number and statement.terms != self.terms:
            return Mismatch.between(self._group.transport.rank, self.terms, source, statement.terms)
        if statement.failure is None:
            return None
        self._known = True  # who fails tells everybody
        if statement.lost is not None:
            return PeerLost(statement.lost, f"rank {source} saw it ({statement.failure})")
        if statement.final:
            return Mismatch(statement.failure)
        return TransportError(f"rank {source} failed in a collective: {statement.failure}")


async def _nothing() -> None:
    """What goes on beside telling where there is nothing to find out."""
