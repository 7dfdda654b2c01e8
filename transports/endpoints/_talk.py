"""What two parties say to one another over one connection: questions, and what becomes of each. The one rule: no I/O.

    asker                                             answerer
    QUESTION (number, topic), note, arrays         →  a task of the topic's handler begins
                                                   ←  ANSWER (number), note, arrays, or REFUSAL (number, reason), facts
    CANCEL (number), when nobody waits any more    →  the task is cancelled, and says nothing

Both ends ask, each counting its own questions upwards, so that one that comes twice is known. Every wait ends with
the connection. Knows a desk and a line; the line may be a socket's or a virtual one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from transports._blocks import Block
from transports._contract import Key
from transports._errors import TransportError, WireError
from transports._freed import settle
from transports._wire import Header, Kind
from transports.endpoints._contract import Answer, Party, Question, Refusal, Unreachable
from transports.endpoints._desk import Desk, Topic

ERROR_CHARACTERS = 1024


def nothing() -> None:
    """What follows a frame that nobody waits for."""


class Line(Protocol):
    """How a talk's frames leave."""

    def say(
        self,
        kind: Kind,
        key: Key,
        blocks: Sequence[Block] = (),
        note: Any = None,
        out: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a frame, sooner or later, in the order said; the blocks' memory is read until it is out, or withdrawn.

        Args:
            out: called when the frame is out, perhaps before this returns; never for what was withdrawn.
        Raises:
            TransportError: what the line cannot carry; nothing is sent.
        """

    def withdraw(self, kind: Kind, number: int) -> None:
        """Read no more of the memory of what was said of this kind and number; what is left of it is not sent."""


@dataclass(slots=True)
class _Coming:
    """A question that was let in, whole or not yet."""

    topic: Topic
    name: str
    nbytes: int
    task: "asyncio.Task[None] | None" = None


class Talk:
    """One end of a connection.

    Args:
        address: of the other party, as it was asked.
        desk: answers what is asked here.

    Attributes:
        there: who the other party is, as soon as that is proved; nothing is heard before.
    """

    def __init__(self, address: str, desk: Desk, line: Line):
        self.address = address
        self.there: Party | None = None
        self._desk, self._line = desk, line
        self._ended: Unreachable | None = None
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._next = 0
        self._coming: dict[int, _Coming] = {}
        self._waiting: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._under_way = 0

    async def ask(self, topic: str, blocks: Sequence[Block], note: Any) -> Answer:
        """See `Endpoint.ask`."""
        if self._ended is not None:
            raise _again(self._ended, sent=False)
        number = self._next
        self._line.say(Kind.QUESTION, (number, topic), blocks, note)
        self._next += 1
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        except asyncio.CancelledError:
            if self._asked.pop(number, None) is not None and self._ended is None:
                self._line.say(Kind.CANCEL, (number,))
            raise
        finally:
            self._asked.pop(number, None)
            self._line.withdraw(Kind.QUESTION, number)

    def wants(self, kind: Kind, header: Header) -> bool:
        """A frame's header is here: whether memory is to be taken for its body. What is refused is answered at once.

        Raises:
            WireError: no frame of a talk.
        """
        match kind, header.key:
            case Kind.QUESTION, (int(number), str(topic)):
                return self._let_in(number, topic, header.nbytes)
            case Kind.ANSWER, (int(number),):
                return self._expects(number, header.nbytes)
            case (Kind.REFUSAL, (int(), str())) | (Kind.CANCEL, (int(),)) if not header.layouts:
                return True
        raise WireError(f"a frame that endpoints do not send (kind: {kind.name}, key: {header.key!r})")

    def heard(self, kind: Kind, header: Header, blocks: tuple[Block, ...] = ()) -> None:
        """A frame that was wanted is whole."""
        number = header.key[0]
        match kind:
            case Kind.QUESTION:
                self._begin(number, header.note, blocks)
            case Kind.ANSWER:
                self._under_way -= header.nbytes
                self._settle(number, Answer(blocks, header.note))
            case Kind.REFUSAL:
                self._settle(number, _read_refusal(header))
            case Kind.CANCEL:
                self._cancel(number)

    def given_up(self, kind: Kind, header: Header) -> None:
        """The rest of a frame that was wanted will not come."""
        if kind is Kind.QUESTION:
            self._leave(header.key[0])
        elif kind is Kind.ANSWER:
            self._under_way -= header.nbytes
            self._settle(header.key[0], Refusal("failed", error="the answer broke off"))

    def end(self, error: Unreachable) -> None:
        """The connection is gone: nobody waits any longer, and nobody works for who cannot hear it."""
        if self._ended is not None:
            return
        self._ended = error
        for future in list(self._asked.values()):
            settle(future, _again(error, error.sent))
        for number in list(self._coming):
            self._cancel(number)

    def _let_in(self, number: int, name: str, nbytes: int) -> bool:
        try:
            topic = self._desk.find(name)
            self._check_new(number, name)
            self._check_room(topic, name, nbytes)
        except Refusal as refusal:
            self._refuse(number, refusal)
            return False
        self._coming[number] = _Coming(topic, name, nbytes)
        self._waiting[name] += 1
        self._under_way += nbytes
        return True

    def _check_new(self, number: int, name: str) -> None:
        """Raise WireError for what was asked before; topics overtake one another, so each has its own count."""
        last = self._last.get(name, -1)
        if number <= last or number in self._coming:
            raise WireError(f"a question that was asked before (number: {number}, last of {name!r}: {last})")
        self._last[name] = number

    def _check_room(self, topic: Topic, name: str, nbytes: int) -> None:
        waiting, under_way, room = self._waiting[name], self._under_way + nbytes, self._desk.most_under_way
        if nbytes > topic.most_bytes:
            raise Refusal("too large", topic=name, bytes=nbytes, limit=topic.most_bytes)
        if waiting >= topic.most_waiting:
            raise Refusal("busy", topic=name, waiting=waiting, limit=topic.most_waiting)
        if under_way > room:
            raise Refusal("busy", topic=name, bytes=under_way, limit=room)

    def _begin(self, number: int, note: Any, blocks: tuple[Block, ...]) -> None:
        if (coming := self._coming.get(number)) is not None:
            question = Question(self.there, coming.name, note, blocks)
            coming.task = self._desk.work(self._work(number, coming, question))

    async def _work(self, number: int, coming: _Coming, question: Question) -> None:
        """Have the handler answer; whatever becomes of it, the asker hears of it once."""
        outcome: Answer | Refusal = Refusal("failed", error="the handler was cancelled")
        try:
            outcome = await coming.topic.handler(question)
        except Refusal as refusal:
            outcome = refusal
        except TransportError as error:
            outcome = Refusal("failed", error=str(error)[:ERROR_CHARACTERS])
        except Exception as error:
            outcome = Refusal("failed", error=type(error).__name__)
            self._desk.fail(error)
        finally:
            if number in self._coming:
                self._reply(number, outcome)

    def _reply(self, number: int, outcome: Answer | Refusal) -> None:
        """Say the outcome; the question has its place here until that is out, for an asker may not read."""
        coming = self._coming[number]
        self._under_way, coming.nbytes, coming.task = self._under_way - coming.nbytes, 0, None
        if isinstance(outcome, Answer):
            try:
                blocks = [Block.of(array) for array in outcome.blocks]
                return self._line.say(Kind.ANSWER, (number,), blocks, outcome.note, partial(self._leave, number))
            except TransportError as error:
                outcome = Refusal("failed", error=str(error)[:ERROR_CHARACTERS])
        self._leave(number)
        self._refuse(number, outcome)

    def _refuse(self, number: int, refusal: Refusal) -> None:
        if self._ended is not None:
            return
        try:
            self._line.say(Kind.REFUSAL, (number, refusal.reason), note=refusal.facts)
        except WireError as error:
            self._line.say(Kind.REFUSAL, (number, "failed"), note={"error": str(error)[:ERROR_CHARACTERS]})

    def _cancel(self, number: int) -> None:
        """Nobody waits for this answer any more, wherever it is."""
        coming = self._coming.get(number)
        self._leave(number)
        if coming is not None and coming.task is not None:
            coming.task.cancel()
        self._line.withdraw(Kind.ANSWER, number)

    def _leave(self, number: int) -> None:
        """Let go of a question, if it has not been let go of."""
        if (coming := self._coming.pop(number, None)) is not None:
            self._waiting[coming.name] -= 1
            self._under_way -= coming.nbytes

    def _expects(self, number: int, nbytes: int) -> bool:
        if not 0 <= number < self._next:
            raise WireError(f"an answer to what was not asked (number: {number}, asked: {self._next})")
        if number not in self._asked:
            return False  # its asker was cancelled while it was under way
        if self._under_way + nbytes > self._desk.most_under_way:
            facts = {"bytes": self._under_way + nbytes, "limit": self._desk.most_under_way}
            self._settle(number, Refusal("too large", **facts))
            self._line.say(Kind.CANCEL, (number,))
            return False
        self._under_way += nbytes
        return True

    def _settle(self, number: int, outcome: Answer | Refusal) -> None:
        future = self._asked.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(outcome, Refusal):
            settle(future, outcome)
        else:
            future.set_result(outcome)


def _again(error: Unreachable, sent: bool) -> Unreachable:
    """The same for one more who waits; an exception that is raised twice gathers both tracebacks."""
    return Unreachable(error.address, error.reason, sent)


def _read_refusal(header: Header) -> Refusal:
    """A refusal as its handler raised it.

    Raises:
        WireError: its facts are none.
    """
    facts = header.note
    if type(facts) is not dict or not all(type(name) is str for name in facts):
        raise WireError("facts of a refusal without names")
    with suppress(TypeError):
        return Refusal(header.key[1], **facts)
    raise WireError("facts of a refusal with names that none can have")
