"""The pieces of parameters that one member of a team holds, and the sums of their gradients inside the team."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pipelined.aio.clock import Clock
from pipelined.programs.updates.bucket_names import Stages
from pipelined.programs.updates.channels import Channels
from pipelined.sharding import MeshGroups, Shards
from pipelined.sharding.operators.tape import sum_gradients, sum_path
from pipelined.sharding.shards import TensorPart, merge_dimensions, take
from pipelined.training.teams.move_timer import MoveTimer
from transports import Transport

Copies = tuple[tuple[int, ...], ...]
"""For each member of a team the members that hold the same piece of a parameter."""


@dataclass(frozen=True)
class TeamShare:
    """A rank's place in its team, and what it holds of each parameter; a team of one holds whole tensors.

    Args:
        members: T.
        member: the rank's number in the team.
        layouts: how each parameter lies in the team, perhaps as a tensor of more dimensions; empty for a team of one.
        wholes: the shapes of all parameters, by name; empty for a team of one.
    """

    members: int = 1
    member: int = 0
    layouts: Mapping[str, Shards] = field(default_factory=dict)
    wholes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def counts(self, name: str, member: int | None = None) -> bool:
        """Whether a member, by default this one, is the first of those that hold its piece of a tensor.

        It alone counts and saves the piece. The first member does so with what all hold whole.
        """
        member = self.member if member is None else member
        if name not in self.layouts:
            return member == 0
        shards = self.layouts[name]
        coordinates = shards.mesh.coordinates(member)
        return not any(coordinate for axis, coordinate in coordinates.items() if axis not in shards.layout.split)

    def copies(self, name: str) -> Copies:
        """For each member the members that hold the same piece of a parameter."""
        if name not in self.layouts:
            return (tuple(range(self.members)),) * self.members
        shards = self.layouts[name]
        split = [axis for axis in shards.mesh.sizes if axis in shards.layout.split]
        piece_of = [[shards.mesh.coordinate(member, axis) for axis in split] for member in range(self.members)]
        return tuple(tuple(peer for peer, piece in enumerate(piece_of) if piece == own) for own in piece_of)

    def part(self, name: str, member: int | None = None) -> TensorPart | None:
        """What a member holds of a tensor, by default this one; None: it holds all of it."""
        if name not in self.layouts:
            return None
        shards, whole = self.layouts[name], self.wholes[name]
        indices = shards.pieces(self.member if member is None else member)
        return TensorPart(whole, merge_dimensions(indices, shards.lengths, whole))

    def parts(self, names: Iterable[str]) -> dict[str, TensorPart]:
        """What this member holds of those of these tensors of which it holds a piece."""
        return {name: part for name in names if (part := self.part(name)) is not None}

    def cut(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """What this member holds of a tensor, from all of it."""
        part = self.part(name)
        cut: torch.Tensor = whole if part is None else take(whole, part.indices)
        return cut

    def entry(self, name: str, member: int | None = None) -> str:
        """The name of a member's piece of a tensor, by default of this one's, among those of all members."""
        return name if self.members == 1 else f"{name}:{self.member if member is None else member}"

    def entries(self, names: Sequence[str]) -> list[str]:
        """Those of every member's piece of these tensors."""
        return [self.entry(name, member) for name in names for member in range(self.members)]


class TeamSums:
    """Sums, inside the team, of the gradients of pieces that several members hold.

    Args:
        layouts: how each parameter lies.
        transport: this rank's end of the network.
        ranks: the members.
        channels: of the job; several buckets may be summed at a time.
        clock: times the sums.
        through_memory: as of `MeshGroups`.

    Attributes:
        timers: of each bucket's sum, by its stages.
    """

    def __init__(
        self,
        layouts: Mapping[str, Shards],
        transport: Transport,
        ranks: Sequence[int],
        channels: Channels,
        clock: Clock,
        *,
        through_memory: bool,
    ):
        self._layouts = layouts
        networks = {
            stages: MeshGroups(transport, channels.team_sum(stages), ranks=ranks, through_memory=through_memory)
            for stages in channels.buckets
        }
        self.timers = {stages: MoveTimer(stages, network, clock) for stages, network in networks.items()}

    async def sum(self, stages: Stages, parameters: Mapping[str, torch.Tensor]) -> None:
        """Add up, in place, the gradients of a bucket's pieces; every member calls this once a step."""
        pieces = [(piece, self._layouts[name]) for name, piece in parameters.items()]
        self.timers[stages].start_pass("update")
        await sum_gradients(self.timers[stages], pieces)

    async def planned_bytes(self, stages: Stages, parameters: Mapping[str, torch.Tensor]) -> int:
        """Payload bytes that this rank sends in one `sum`; every member calls this."""
        network = self.timers[stages].network
        sums = [(piece.element_size(), sum_path(self._layouts[name])) for name, piece in parameters.items()]
        return sum([itemsize * await network.elements(path) for itemsize, path in sums])
