"""What ranks say to one another of a call that waits long or has failed, and what each concludes from it.

    look round   a rank that still waits tells the group's first rank what it is doing, and listens: so ranks that wait
                 for one another in different algorithms are found out, and a rank far from a failure hears of it
    conclude     whoever fails tells all ranks of the group why, in its own time bounded, before it raises; whose bytes
                 did not fit first listens whether that is because ranks meant different things

The one rule: statements carry the number of the call and the life of the group, so that none is ever taken for another
call's. Knows nothing of the collective's own bytes.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectives._terms import Mismatch
from collectives._together import together
from transports._errors import Closed, PeerAborted, PeerLost, TransportError

if TYPE_CHECKING:
    from collectives._calling import Call

FAREWELL_S = 0.25
"""Longest time in which a rank that failed waits for its statements to leave."""
INQUEST_S = 1.0
"""Longest time in which a rank whose bytes did not fit listens for what the others meant."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one rank says of one call: its terms as it was asked and as they are by now, as an algorithm may be chosen
    on the way; and if it failed, why, and which rank of the transport was lost.
    """

    number: int
    asked: str
    terms: str
    failure: str | None = None
    lost: int | None = None
    final: bool = False

    @classmethod
    def of(cls, note: Any) -> "Statement":
        """Read what came; raises ValueError for anything else."""
        number, asked, terms, failure, lost, final = note
        kinds = ((number, int), (asked, str), (terms, str), (failure, str | None), (lost, int | None), (final, bool))
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise ValueError(f"no statement of a rank ({note!r}); install one release on every rank")
        return cls(number, asked, terms, failure, lost, final)

    @property
    def note(self) -> list[Any]:
        return [self.number, self.asked, self.terms, self.failure, self.lost, self.final]


class Inquest:
    """One rank's part in finding out what became of a call.

    Args:
        call: the one under way; its terms may still be said more exactly.
    Attributes:
        verdict: what ended the call, as far as this rank knows.
    """

    def __init__(self, call: "Call"):
        self._call, self._group = call, call.group
        self.verdict: Exception | None = None
        self._interrupted = self._known = False
        self._watch: asyncio.Task[None] | None = None

    def look_round(self) -> None:
        """Say what this rank does, and listen, until `stop`; what is heard to end the call cancels its task."""
        self._watch = asyncio.get_running_loop().create_task(self._look_round())

    async def stop(self) -> None:
        """Look round no more.

        Raises:
            ValueError: what came was no statement.
        """
        if self._watch is None:
            return
        self._watch.cancel()
        await asyncio.wait([self._watch])
        if not self._watch.cancelled() and (error := self._watch.exception()) is not None:
            raise error

    async def conclude(self, error: BaseException) -> None:
        """Tell the others, find out what is behind it, and raise that; a cancellation from outside just goes on."""
        if self._interrupted:
            self._call.task.uncancel()
        elif isinstance(error, TransportError | Mismatch):
            self.verdict = error
        else:
            return
        if isinstance(self.verdict, Closed | PeerAborted):
            return self._raise(error)
        puzzled = type(self.verdict) is TransportError
        await together(self._tell_all(), self._inquire() if puzzled else _nothing())
        self._raise(error)

    async def _look_round(self) -> None:
        with suppress(TransportError):  # what the call itself waits for fails likewise, or it has all it needs
            await together(self._announce(), self._listen())

    async def _announce(self) -> None:
        if self._group.rank:
            with suppress(TransportError):
                await self._say(self._group.ranks[0], self._statement())

    async def _listen(self) -> None:
        self.verdict = await self._hear()
        self._interrupted = True
        self._call.task.cancel()

    async def _inquire(self) -> None:
        """Bytes did not fit, here or elsewhere: find out whether that is because ranks meant different things."""
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(INQUEST_S):
                self.verdict = await self._hear(only_mismatch=True)

    def _raise(self, error: BaseException) -> None:
        if self.verdict is not error:
            raise self.verdict from (None if isinstance(error, asyncio.CancelledError) else error)

    async def _tell_all(self) -> None:
        if self._known:
            return
        verdict, lost = self.verdict, None
        if isinstance(verdict, PeerLost):
            lost = verdict.rank
        statement = self._statement(str(verdict), lost, isinstance(verdict, Mismatch))
        others = [rank for rank in self._group.ranks if rank not in (lost, self._group.transport.rank)]
        if others:
            saying = [asyncio.ensure_future(self._say(rank, statement)) for rank in others]
            try:
                await asyncio.wait(saying, timeout=FAREWELL_S)
            finally:
                for each in saying:
                    each.cancel()
                await asyncio.gather(*saying, return_exceptions=True)

    def _statement(self, failure: str | None = None, lost: int | None = None, final: bool = False) -> Statement:
        return Statement(self._call.number, self._call.asked, self._call.terms, failure, lost, final)

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
        if statement.number > self._call.number:
            self._group.early.append((source, statement))
            return None
        if statement.number == self._call.number and self._differs(statement):
            return Mismatch.between(self._group.transport.rank, self._call.terms, source, statement.terms)
        if statement.failure is None:
            return None
        self._known = True  # who fails tells everybody
        if statement.lost is not None:
            return PeerLost(statement.lost, f"rank {source} saw it ({statement.failure})")
        if statement.final:
            return Mismatch(statement.failure)
        return TransportError(f"rank {source} failed in a collective: {statement.failure}")

    def _differs(self, said: Statement) -> bool:
        """Whether that rank means something else; where one of the two has yet to choose, they may choose alike."""
        call = self._call
        both_chose = said.terms != said.asked and call.terms != call.asked
        return said.asked != call.asked or (both_chose and said.terms != call.terms)


async def _nothing() -> None:
    """What goes on beside telling where there is nothing to find out."""
