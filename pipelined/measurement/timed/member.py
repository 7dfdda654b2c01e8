"""A member of a team, to be timed alone: its moves are free, so that its passes take the seconds of its computing.

A tape computes a layer in pieces between moves, and allocates their results: that takes more than the same share of a
plain stage, most if microbatches are small.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pipelined.actors.device.executor import Executor
from pipelined.aio.clock import RealClock
from pipelined.measurement.timed.channels import SILENT_CHANNEL
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import MeshGroups, Path
from pipelined.sharding.operators.stage_record import run_to_end
from pipelined.sharding.shared_memory import StartedMove
from pipelined.training.exchange.parcels import Arrived
from pipelined.training.job.numerics import Numerics
from pipelined.training.job.rank_context import MicrobatchKey
from pipelined.training.stages.team_stage import TeamStage
from pipelined.training.teams.team_model import TeamModel
from transports import Block, Message, Transport

T = TypeVar("T")


def team_size(model: TeamModel) -> int:
    """The ranks of a team that splits the model."""
    return model.input_shards((0, 0)).mesh.size


class MemberStage:
    """The first member's stage; nothing in its passes waits, so they are functions, as those of a `Stage`.

    Args:
        model: the whole model, split.
        layers: the layers of the stage.
        numerics: the dtypes of training.
        device: the device of its tensors.
        transport: the rank's transport, over which the stage sends nothing.
    Attributes:
        module: the member's pieces of these layers.
    """

    def __init__(self, model: TeamModel, layers: range, numerics: Numerics, device: torch.device, transport: Transport):
        self.module = model.member_model(0).build(layers, numerics.dtype, device, seed=0)
        self._model = model
        moves = FreeMoves(transport)
        executor = InPlaceExecutor(device)
        self._team = TeamStage(model, self.module, layers, 0, moves, executor=executor, autocast=numerics.autocast)
        self.is_first, self.is_last = self._team.is_first, self._team.is_last

    def forward(self, key: MicrobatchKey, x: Arrived, random: KeyedRandom, targets: Any = None) -> None:
        """See `TeamStage.forward`."""
        run_to_end(self._team.forward(key, x, random, targets))

    def backward(self, key: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any) -> None:
        """See `TeamStage.backward`."""
        run_to_end(self._team.backward(key, gradient, scale, random, targets))

    def backward_input(
        self, key: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any
    ) -> None:
        """See `TeamStage.backward_input`."""
        run_to_end(self._team.backward_input(key, gradient, scale, random, targets))

    def backward_weight(self, key: MicrobatchKey) -> None:
        """See `TeamStage.backward_weight`."""
        run_to_end(self._team.backward_weight(key))

    def piece(self, stream: torch.Tensor) -> torch.Tensor:
        """This member's piece of a stream, or of its gradient."""
        piece: torch.Tensor = self._model.stream_shards(tuple(stream.shape)).local(stream, 0)
        return piece

    def message(self, stream: torch.Tensor) -> Message:
        """This member's piece of a stream, as the stage before sends it."""
        return Message(0, (), (Block.of(self.piece(stream)),), ["piece", *stream.shape])


class FreeMoves(MeshGroups):
    """Gives the first member an array of the moved array's shape at once, without those of other members."""

    def __init__(self, transport: Transport):
        super().__init__(transport, SILENT_CHANNEL, ranks=(transport.rank,))

    def start(self, path: Path, array: Any) -> StartedMove:
        """See `MeshGroups.start`. The array holds ones: zeros and stale memory may compute faster or slower."""
        return FreeMove(array.new_ones(path.target.shape(self.rank)))


class FreeMove(StartedMove):
    """A move that has ended."""

    def __init__(self, moved: torch.Tensor):
        self.moved = moved


class InPlaceExecutor(Executor):
    """Computes in the calling thread."""

    def __init__(self, device: torch.device):
        super().__init__(RealClock())
        self.device = str(device)

    async def run(self, op: str, work: Callable[[], T], report_at_once: bool = True) -> tuple[T, float, float]:
        """See `Executor.run`."""
        start = self.clock.now()
        return work(), start, self.clock.now()
