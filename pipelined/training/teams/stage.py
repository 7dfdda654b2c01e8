"""A stage whose tensors are split over the members of a team: its passes are coroutines over the tape.

Every member does the same passes in the same order, each on its own pieces. Between computations tensors move from
member to member, so the event loop awaits a pass; only its computations run on the executor.
"""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from pipelined.actors.executor import Executor
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.groups import MeshGroups
from pipelined.sharding.operators.tape import Tape, sum_gradients
from pipelined.sharding.operators.verbs import Reader, Value
from pipelined.training.exchange.stream import Arrived, Parcel, Tree, open_tree
from pipelined.training.model import Model
from pipelined.training.running_statistics import RunningStatistics
from pipelined.training.stage import MicrobatchKey


@runtime_checkable
class TeamModel(Model, Protocol):
    """A model that a team can split; as a `Model` it is the whole."""

    def of_member(self, member: int) -> Model:
        """The model of which `build` gives a member's pieces, as many dimensions each as the whole parameter."""
        ...

    def parameters(self) -> dict[str, Shards]:
        """How each parameter lies; a member's piece has this shape, or is flattened from it."""
        ...

    def ids(self, lead: tuple[int, ...]) -> Shards:
        """How inputs and targets lie; lead: their shape."""
        ...

    def output(
        self, run: Reader, ids: Value, pieces: Mapping[str, torch.Tensor], random: KeyedRandom | None = None
    ) -> Coroutine[Any, Any, Value]:
        """The logits; random: of the microbatch's dropout, None: nothing is dropped."""
        ...

    def score(self, run: Reader, output: Value, targets: Value) -> Coroutine[Any, Any, Value]:
        """The mean loss, as a sum over some axes; of its gradient every member has the whole."""
        ...


def split_model(model: Model) -> TeamModel:
    """The model, which a team splits.

    Raises:
        UsageError: it does not say how.
    """
    if not isinstance(model, TeamModel):
        fact = f"a {type(model).__name__} does not say how ranks split it"
        raise UsageError(f"{fact}; write what pipelined.training.teams.stage.TeamModel lists, or use tensor 1")
    return model


@dataclass
class TeamStage:
    """The only stage of a pipeline, as one member of a team holds it.

    Args:
        model: the whole.
        module: this member's pieces, by the names of the whole.
        network: carries pieces among the members.
        executor: runs each computation.
        recompute: keep only the input of a microbatch, and run its forward again before its backward.
        replicas: the ranks that hold the same pieces.
    """

    model: TeamModel
    module: nn.Module
    network: MeshGroups
    executor: Executor
    recompute: bool = False
    replicas: int = 1
    alive: dict[MicrobatchKey, tuple[Tape, Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.statistics = RunningStatistics(self.module, 0, self.replicas)
        self._lie = self.model.parameters()
        self._device = torch.device(self.executor.device)

    async def forward(self, key: MicrobatchKey, x: Arrived, random: KeyedRandom, targets: Tree = None) -> Parcel:
        """Forward one microbatch; see `Stage.forward`.

        Returns: the loss, which all members add up to the same number.
        """
        tape = self._tape(not self.recompute)
        summand = await self._loss(tape, x, targets, random)
        self.statistics.note(random.step, random.microbatch, tape.noted)
        self.alive[key] = tape, self._placed(x) if self.recompute else summand
        loss = Value(summand.array, summand.shards, False)
        whole = await tape.move(loss, Shards(loss.shards.mesh, (), ""))
        return Parcel((whole.array.cpu(), None))

    async def backward(
        self, key: MicrobatchKey, gradient: Arrived | None, scale: float, random: KeyedRandom, targets: Tree = None
    ) -> None:
        """Backward one microbatch; see `Stage.backward`. Gradients gather as summands of the members' pieces."""
        tape, kept = self.alive.pop(key)
        if self.recompute:
            tape = self._tape(True)
            kept = await self._loss(tape, kept.array, targets, random, placed=kept)
        await tape.backward(kept, torch.full_like(kept.array, scale))

    async def backward_input(
        self, key: MicrobatchKey, gradient: Arrived | None, scale: float, random: KeyedRandom, targets: Tree = None
    ) -> None:
        """The whole backward: no rank waits for a gradient of the first stage's input."""
        await self.backward(key, gradient, scale, random, targets)

    async def backward_weight(self, key: MicrobatchKey) -> None:
        """Nothing: see `backward_input`."""

    async def evaluate(self, x: Arrived) -> Tree:
        """Forward without random numbers; the whole logits, equal on all members.

        Cost: a member holds the logits of the whole microbatch once.
        """
        tape = self._tape(False)
        output = await self.model.output(tape, self._placed(x), self._pieces())
        whole = Shards(output.shards.mesh, output.shards.lengths, "")
        return (await tape.move(Value(output.array, output.shards, False), whole)).array

    async def sum_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Add up, in place, the gradients of the pieces that several members hold; all members call this."""
        trained = {name: each for name, each in parameters.items() if each.requires_grad}
        await sum_gradients(self.network, [(each, self._lie[name]) for name, each in trained.items()])

    def counts(self, name: str) -> bool:
        """Whether this member is the first of those that hold its piece of a parameter."""
        shards = self._lie[name]
        at = shards.mesh.coordinates(self.network.rank)
        return not any(place for axis, place in at.items() if axis not in shards.layout.split)

    async def _loss(
        self, tape: Tape, x: Arrived, targets: Tree, random: KeyedRandom, placed: Value | None = None
    ) -> Value:
        output = await self.model.output(tape, placed or self._placed(x), self._pieces(), random)
        return await self.model.score(tape, output, self._placed(targets))

    def _tape(self, training: bool) -> Tape:
        return Tape(self.network, self.executor, training)

    def _placed(self, whole: Arrived) -> Value:
        """This member's piece of inputs or targets."""
        tensor = open_tree(whole, self._device)
        if not isinstance(tensor, torch.Tensor):
            fact = f"a team takes inputs and targets of one tensor each (given: a {type(tensor).__name__})"
            raise UsageError(f"{fact}; give one, or use tensor 1")
        shards = self.model.ids(tuple(tensor.shape))
        return Value(shards.local(tensor, self.network.rank), shards, False)

    def _pieces(self) -> dict[str, torch.Tensor]:
        """Parameters as they lie, and buffers."""
        lie, rank = self._lie, self.network.rank
        pieces = {name: each.view(lie[name].shape(rank)) for name, each in self.module.named_parameters()}
        return {**pieces, **dict(self.module.named_buffers())}
