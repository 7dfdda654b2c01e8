"""Tensors that go past stages: from the stage that gives them straight to the one that reads them, and so back.

    stage 0            stage 1             stage 2            stage 3
    gives (x, skip) ─► reads x,        ─► reads x,        ─► reads (x, skip)
             │         hands skip on       hands skip on        ▲
             └──────────────────────────────────────────────────┘

A stage between gets its tree from the stage before it, with an `Elsewhere` in the tensor's place, and hands that on.
The gradient takes the same way back. A tensor that a stage reads and hands on goes from reader to reader, so that
gradients are added in the order of the stages. The positions of tensors are counted through a tree; see `stream`.
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
    """A tensor at a position of what one stage gives, and at a position of what a later stage takes."""

    giver: int
    output_position: int
    reader: int
    input_position: int


class StraightTensor(NamedTuple):
    """A tensor that came straight from the stage that gives it."""

    has_gradient: bool
    block: Block


@dataclass(frozen=True)
class Skips:
    """All tensors of a model that go past stages.

    Args:
        skips: in order of givers and their positions.
        absent: by stage, the positions of the tensors that it hands on without having them.
    """

    skips: tuple[Skip, ...] = ()
    absent: Mapping[int, Collection[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, handed_on: Sequence[Mapping[int, int]]) -> "Skips":
        """Find the tensors of a model that go past stages.

        Args:
            handed_on: for each stage between the first and the last, what it hands on unread: by the position where it
                takes a tensor, the position where it gives that tensor.
        """
        skips = list[Skip]()
        origins = dict[int, tuple[int, int]]()  # of what a stage takes and does not have: the giver, and its position
        for stage, output_positions in enumerate([*handed_on, {}], 1):
            skips += [
                Skip(*origin, stage, position)
                for position, origin in origins.items()
                if position not in output_positions
            ]
            origins = {
                output_position: origins.get(input_position, (stage - 1, input_position))
                for input_position, output_position in output_positions.items()
            }
        absent = {stage: {*output_positions.values()} for stage, output_positions in enumerate(handed_on, 1)}
        return cls(tuple(sorted(skips)), absent)

    def readers(self, stage: int) -> list[int]:
        """The stages that read what goes straight from a stage."""
        return sorted({skip.reader for skip in self.skips if skip.giver == stage})

    def givers(self, stage: int) -> list[int]:
        """The stages that send straight to a stage what it reads."""
        return sorted({skip.giver for skip in self.skips if skip.reader == stage})

    def sent_tensors(self, stage: int, tensors: Sequence[T]) -> dict[int, list[T]]:
        """The tensors that a stage sends, by reader: of all `tensors` that it gives, those that it has."""
        readers = self._readers_by_position(stage)
        sent: dict[int, list[T]] = {stage + 1: []}
        for position, tensor in enumerate(tensors):
            if position not in self.absent.get(stage, ()):
                sent.setdefault(readers.get(position, stage + 1), []).append(tensor)
        return sent

    def split_activations(self, stage: int, whole: Parcel) -> dict[int, Parcel]:
        """What a stage gives, by the stage that it is sent to; the next one is always among them."""
        readers = self._readers_by_position(stage)
        positions = count()
        if not readers:
            return {stage + 1: whole}
        unsent = iter(whole.tensors)
        tensors = {reader: list[Any]() for reader in (stage + 1, *readers.values())}
        notes = {reader: ["tuple"] for reader in tensors}

        def split(part: Any) -> Any:
            reader = readers.get(next(positions), stage + 1)
            if part != [ELSEWHERE]:
                tensors[reader].append(next(unsent))
                notes[reader].append(part)
            return part if reader == stage + 1 else [ELSEWHERE]

        notes[stage + 1] = _map_note(whole.note, split)
        return {reader: Parcel(tuple(sent), notes[reader]) for reader, sent in tensors.items()}

    def join_activations(self, stage: int, messages: Mapping[int, Message]) -> Message:
        """What a stage takes, as one message.

        Args:
            messages: by the stage that sent them.
        Raises:
            WireError: they do not hold these tensors.
        """
        neighbor = messages[stage - 1]
        positions = count()
        blocks = list[Block | None]()
        if len(messages) == 1:
            return neighbor
        straight = {
            position: tensor
            for giver in self.givers(stage)
            for position, tensor in self._straight_tensors(giver, stage, messages[giver])
        }
        neighbor_blocks = iter(neighbor.blocks)

        def join(part: Any) -> Any:
            if tensor := straight.pop(next(positions), None):
                blocks.append(tensor.block)
                return tensor.has_gradient
            if part != [ELSEWHERE]:
                blocks.append(next(neighbor_blocks, None))
            return part

        note = _map_note(neighbor.note, join)
        present = tuple(block for block in blocks if block is not None)
        if straight or len(present) < len(blocks) or next(neighbor_blocks, None) is not None:
            fact = f"tensors: {len(neighbor.blocks)}, note: {neighbor.note}"
            raise WireError(f"other tensors than the note describes ({fact})")
        return Message(neighbor.source, neighbor.key, present, note)

    def split_gradients(self, stage: int, whole: Parcel) -> dict[int, Parcel]:
        """The gradients of what a stage takes, by the stage that they are sent to; the one before is among them."""
        origins = {
            skip.input_position: (skip.giver, skip.output_position) for skip in self.skips if skip.reader == stage
        }
        if not origins:
            return {stage - 1: whole}
        gradients = {giver: list[Any]() for giver in (stage - 1, *self.givers(stage))}
        output_positions = {giver: list[int]() for giver in gradients}
        input_positions = [0] if whole.note is None else whole.note
        for input_position, gradient in zip(input_positions, whole.tensors, strict=True):
            giver, output_position = origins.get(input_position, (stage - 1, input_position))
            gradients[giver].append(gradient)
            output_positions[giver].append(output_position)
        return {giver: Parcel(tuple(sent), output_positions[giver]) for giver, sent in gradients.items()}

    def join_gradients(self, stage: int, messages: Mapping[int, Message]) -> Message:
        """The gradients of what a stage gives, as one message in the order of their positions.

        Raises:
            WireError: they are not those of these tensors.
        """
        neighbor = messages[stage + 1]
        if len(messages) == 1:
            return neighbor
        notes = [message.note for message in messages.values()]
        blocks = [message.blocks for message in messages.values()]
        lengths = zip(notes, map(len, blocks), strict=True)
        if not all(isinstance(note, list) and len(note) == length for note, length in lengths):
            raise WireError(f"gradients without their positions (notes: {notes})")
        pairs = sorted(zip(chain(*notes), chain(*blocks), strict=True), key=lambda pair: pair[0])
        return Message(
            neighbor.source, neighbor.key, tuple(block for _, block in pairs), [position for position, _ in pairs]
        )

    def _readers_by_position(self, stage: int) -> dict[int, int]:
        """The stages that read what goes straight from a stage, by the position where it gives that."""
        return {skip.output_position: skip.reader for skip in self.skips if skip.giver == stage}

    def _straight_tensors(self, giver: int, stage: int, message: Message) -> Iterator[tuple[int, StraightTensor]]:
        """The tensors that came straight from a stage, each with the position where this stage takes it."""
        positions = [skip.input_position for skip in self.skips if (skip.giver, skip.reader) == (giver, stage)]
        parts = message.note[1:] if isinstance(message.note, list) else []
        are_as_many = len(positions) == len(parts) == len(message.blocks)
        if not are_as_many or not all(isinstance(part, bool) for part in parts):
            raise WireError(f"other tensors than go past stages (due: {len(positions)}, came: {message.note!r:.80})")
        return zip(positions, map(StraightTensor, parts, message.blocks), strict=True)


NO_SKIPS = Skips()


def key_between(stage: int, address: Address) -> tuple[int | str, ...]:
    """The key of a message from a stage; straight ones name it, as one rank may hold several stages."""
    return address.key if abs(stage - address.stage) == 1 else (STRAIGHT, stage, *address.key)


def _map_note(note: Any, replace: Callable[[Any], Any]) -> Any:
    """A note with each part that stands for a tensor replaced, in order."""
    match note:
        case bool() | ["elsewhere"]:
            return replace(note)
        case ["tuple" | "list" as kind, *parts]:
            return [kind, *(_map_note(part, replace) for part in parts)]
        case ["dict", *pairs]:
            return ["dict", *([key, _map_note(part, replace)] for key, part in pairs)]
    return note
