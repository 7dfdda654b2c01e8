"""Tensors that go past stages: from the stage that gives them straight to the one that reads them, and so back.

    stage 0            stage 1             stage 2            stage 3
    gives (x, skip) ─► reads x,        ─► reads x,        ─► reads (x, skip)
             │         hands skip on       hands skip on        ▲
             └──────────────────────────────────────────────────┘

A stage between gets its tree from the stage before it, with an `Elsewhere` in the tensor's place, and hands that on.
The gradient takes the same way back. A tensor that a stage reads and hands on goes from reader to reader, so that
gradients are added in the order of the stages. The places of tensors are counted through a tree; see `stream`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple, TypeVar

from pipelined.programs.addresses import Address
from pipelined.training.exchange.parcels import ELSEWHERE, Parcel
from transports import Block, Message, WireError

T = TypeVar("T")
STRAIGHT = "straight"
"""Begins the address of a message between two stages that are not neighbours."""


class Skip(NamedTuple):
    """A tensor at a place of what one stage gives, and at a place of what a later stage takes."""

    giver: int
    given: int
    reader: int
    taken: int


@dataclass(frozen=True)
class Skips:
    """All tensors of a model that go past stages.

    Args:
        every: in order of the places where they are given.
        absent: by stage, the places of the tensors that it hands on without having them.
    """

    every: tuple[Skip, ...] = ()
    absent: Mapping[int, Collection[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, handed_on: Sequence[Mapping[int, int]]) -> "Skips":
        """Those of a model.

        Args:
            handed_on: of each stage between the first and the last, what it hands on unread: by the place where it
                takes a tensor, the place where it gives that tensor.
        """
        skips, past = list[Skip](), dict[int, tuple[int, int]]()
        for stage, handed in enumerate([*handed_on, {}], 1):
            skips += [Skip(*giver, stage, place) for place, giver in past.items() if place not in handed]
            past = {to: past.get(place, (stage - 1, place)) for place, to in handed.items()}
        return cls(tuple(sorted(skips)), {stage: {*handed.values()} for stage, handed in enumerate(handed_on, 1)})

    def readers(self, stage: int) -> list[int]:
        """The stages that read what goes straight from a stage."""
        return sorted({skip.reader for skip in self.every if skip.giver == stage})

    def givers(self, stage: int) -> list[int]:
        """The stages that send straight to a stage what it reads."""
        return sorted({skip.giver for skip in self.every if skip.reader == stage})

    def sent(self, stage: int, tensors: Sequence[T]) -> dict[int, list[T]]:
        """Of all tensors that a stage gives, also those that it does not have, those that it sends, by reader."""
        readers = {skip.given: skip.reader for skip in self.every if skip.giver == stage}
        to: dict[int, list[T]] = {stage + 1: []}
        for place, tensor in enumerate(tensors):
            if place not in self.absent.get(stage, ()):
                to.setdefault(readers.get(place, stage + 1), []).append(tensor)
        return to

    def split_activations(self, stage: int, whole: Parcel) -> dict[int, Parcel]:
        """What a stage gives, by the stage that it is sent to; the next one is always among them."""
        readers = {skip.given: skip.reader for skip in self.every if skip.giver == stage}
        places = count()
        if not readers:
            return {stage + 1: whole}
        every_tensor = iter(whole.tensors)
        tensors = {reader: list[Any]() for reader in (stage + 1, *readers.values())}
        notes = {reader: ["tuple"] for reader in tensors}

        def part_of(part: Any) -> Any:
            reader = readers.get(next(places), stage + 1)
            if part != [ELSEWHERE]:
                tensors[reader].append(next(every_tensor))
                notes[reader].append(part)
            return part if reader == stage + 1 else [ELSEWHERE]

        notes[stage + 1] = _map_note(whole.note, part_of)
        return {reader: Parcel(tuple(own), notes[reader]) for reader, own in tensors.items()}

    def join_activations(self, stage: int, messages: Mapping[int, Message]) -> Message:
        """What a stage takes, as one message.

        Args:
            messages: by the stage that sent them.
        Raises:
            WireError: they do not hold these tensors.
        """
        near = messages[stage - 1]
        places = count()
        blocks = list[Block | None]()
        if len(messages) == 1:
            return near
        due = {place: part for giver in self.givers(stage) for place, part in self._take(giver, stage, messages[giver])}
        own = iter(near.blocks)

        def part_of(part: Any) -> Any:
            straight = due.pop(next(places), None)
            if straight:
                blocks.append(straight[1])
            elif part != [ELSEWHERE]:
                blocks.append(next(own, None))
            return straight[0] if straight else part

        note = _map_note(near.note, part_of)
        present = tuple(block for block in blocks if block is not None)
        if due or len(present) < len(blocks) or next(own, None) is not None:
            raise WireError(f"other tensors than the note describes (tensors: {len(near.blocks)}, note: {near.note})")
        return Message(near.source, near.key, present, note)

    def split_gradients(self, stage: int, whole: Parcel) -> dict[int, Parcel]:
        """The gradients of what a stage takes, by the stage that they are sent to; the one before is among them."""
        origins = {skip.taken: (skip.giver, skip.given) for skip in self.every if skip.reader == stage}
        if not origins:
            return {stage - 1: whole}
        gradients = {giver: list[Any]() for giver in (stage - 1, *self.givers(stage))}
        notes = {giver: list[int]() for giver in gradients}
        places = [0] if whole.note is None else whole.note
        for place, gradient in zip(places, whole.tensors, strict=True):
            giver, given = origins.get(place, (stage - 1, place))
            gradients[giver].append(gradient)
            notes[giver].append(given)
        return {giver: Parcel(tuple(own), notes[giver]) for giver, own in gradients.items()}

    def join_gradients(self, stage: int, messages: Mapping[int, Message]) -> Message:
        """The gradients of what a stage gives, as one message in the order of their places.

        Raises:
            WireError: they are not those of these tensors.
        """
        near = messages[stage + 1]
        if len(messages) == 1:
            return near
        notes = [message.note for message in messages.values()]
        blocks = [message.blocks for message in messages.values()]
        if not all(isinstance(note, list) and len(note) == len(own) for note, own in zip(notes, blocks, strict=True)):
            raise WireError(f"gradients without their places (notes: {notes})")
        pairs = sorted(zip(chain(*notes), chain(*blocks), strict=True), key=lambda pair: pair[0])
        return Message(near.source, near.key, tuple(block for _, block in pairs), [place for place, _ in pairs])

    def _take(self, giver: int, stage: int, message: Message) -> Iterator[tuple[int, tuple[bool, Block]]]:
        """What came straight from a stage: by the place where it is taken its part of the note, and the tensor."""
        taken = [skip.taken for skip in self.every if (skip.giver, skip.reader) == (giver, stage)]
        parts = message.note[1:] if isinstance(message.note, list) else []
        are_as_many = len(taken) == len(parts) == len(message.blocks)
        if not are_as_many or not all(isinstance(part, bool) for part in parts):
            raise WireError(f"other tensors than go past stages (due: {len(taken)}, came: {message.note!r:.80})")
        return zip(taken, zip(parts, message.blocks, strict=True), strict=True)


NO_SKIPS = Skips()


def key_between(stage: int, address: Address) -> tuple[int | str, ...]:
    """The key of a message from a stage; straight ones name it, as one rank may hold several stages."""
    return address.key if abs(stage - address.stage) == 1 else (STRAIGHT, stage, *address.key)


def _map_note(note: Any, part_of: Callable[[Any], Any]) -> Any:
    """A note with each part that stands for a tensor replaced, in order."""
    match note:
        case bool() | ["elsewhere"]:
            return part_of(note)
        case ["tuple" | "list" as kind, *parts]:
            return [kind, *(_map_note(part, part_of) for part in parts)]
        case ["dict", *pairs]:
            return ["dict", *([key, _map_note(part, part_of)] for key, part in pairs)]
    return note
