"""A stage whose tensors are split over the members of a team: its passes are coroutines over the tape.

Every member does the same passes in the same order, each on its own pieces. Between computations tensors move from
member to member: a pass is a coroutine that runs on the executor up to its next move, and the event loop awaits that.
What flows to another stage goes from each member to the same member of that stage's team, in pieces of 1/T of the
bytes. The weight half of a backward has no communication, unless weights are sharded as by ZeRO; so the members need
not run it at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from pipelined.actors.device.executor import ComputeQueue, Executor
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import MeshGroups, Shards
from pipelined.sharding.operators.tape import Computation, Tape, WeightWork, compute_back
from pipelined.sharding.operators.verbs import Value
from pipelined.training.exchange.parcels import Arrived, Parcel, Tree, differentiable, open_tree
from pipelined.training.graph.split_backward import WeightHalf, backward_input
from pipelined.training.job.rank_context import MicrobatchKey
from pipelined.training.stages.key_values import KeyValueCache
from pipelined.training.stages.running_statistics import RunningStatistics
from pipelined.training.teams.move_timer import MoveTimer
from pipelined.training.teams.team_model import TeamModel
from transports import Message, WireError

T = TypeVar("T")


class LiveMicrobatch(NamedTuple):
    """A microbatch between its forward and its backward; with recomputation the input alone."""

    x: Value
    run: tuple[Tape, Value] | None


@dataclass(frozen=True)
class ContinuingQueue:
    """Computes on the tokens after those of a past; its thread has no context of the event loop's."""

    queue: ComputeQueue
    past: KeyValueCache

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        """See `Executor.run`."""
        return await self.queue.run(op, lambda: self.past.run_work(work))


@dataclass
class TeamStage:
    """A range of layers, as one member of a team holds it.

    Args:
        model: the whole.
        module: this member's pieces of these layers, by the names of the whole.
        layers: the range.
        index: the number of the stage.
        network: carries pieces among the members.
        executor: computes.
        autocast, recompute, replicas: as of a `Stage`; replicas are the ranks that hold the same pieces.
        gathered: of the rank's tapes in a step; see `Tape`.
    """

    model: TeamModel
    module: nn.Module
    layers: range
    index: int
    network: MeshGroups
    executor: Executor
    autocast: torch.dtype | None = None
    recompute: bool = False
    replicas: int = 1
    gathered: dict[str, torch.Tensor] | None = None
    alive: dict[MicrobatchKey, LiveMicrobatch] = field(default_factory=dict)
    pending: dict[MicrobatchKey, Tape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.statistics = RunningStatistics(self.module, self.index, self.replicas)
        self._layouts = self.model.parameters()
        self._device = torch.device(self.executor.device)
        self.moves = MoveTimer((self.index,), self.network, self.executor.clock)

    @property
    def is_first(self) -> bool:
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        return self.layers.stop == self.model.layers

    async def forward(self, key: MicrobatchKey, x: Arrived, random: KeyedRandom, targets: Tree = None) -> Parcel:
        """Forward one microbatch; see `Stage.forward`.

        Returns: this member's piece for the next stage; on the last stage the loss, which all members add up to the
            same number.
        """
        self.moves.start_pass("forward")
        tape = self._tape(not self.recompute, self.gathered)
        stage_input = self._open_input(x)
        output, outgoing = await tape.run(self._forward(tape, stage_input, random, targets))
        if self.statistics.has_buffers:
            self.statistics.add_notes(random.step, random.microbatch, tape.noted)
        self.alive[key] = LiveMicrobatch(stage_input, None if self.recompute else (tape, output))
        return self._parcel(outgoing)

    async def backward(
        self, key: MicrobatchKey, gradient: Arrived | None, scale: float, random: KeyedRandom, targets: Tree = None
    ) -> Parcel | None:
        """Backward one microbatch; see `Stage.backward`. Each member adds its summand to its pieces' gradients."""
        tape, x, output = await self._revive(key, random, targets)
        await tape.run(tape.backward(output, self._seed(output, gradient, scale)))
        return self._pack_gradient(x)

    async def backward_input(
        self, key: MicrobatchKey, gradient: Arrived | None, scale: float, random: KeyedRandom, targets: Tree = None
    ) -> Parcel | None:
        """The half of `backward` with all its moves but those of sharded weights' gradients; see `Stage`."""
        tape, x, output = await self._revive(key, random, targets)
        self.pending[key] = tape
        await tape.run(tape.backward(output, self._seed(output, gradient, scale), input_half))
        return self._pack_gradient(x)

    async def backward_weight(self, key: MicrobatchKey) -> None:
        """The half of `backward` that accumulates the gradients of parameters."""
        self.moves.resume("backward")
        tape = self.pending.pop(key)
        await tape.run(tape.backward_weights())

    async def evaluate(self, x: Arrived, past: KeyValueCache | None = None) -> Parcel:
        """Forward without random numbers: this member's piece, or on the last stage the whole logits on every member.

        Args:
            past: as of `Stage.evaluate`; this member keeps keys and values of its own heads and sequences.
        Cost: on the last stage a member holds the logits of the whole microbatch once.
        """
        self.moves.start_pass("evaluation")
        tape = self._tape(False, past=past)
        stage_input = self._open_input(x)
        output = await tape.run(self._run_evaluation(tape, stage_input))
        if past:
            past.advance(stage_input.shards.lengths[1])
        return self._parcel(output)

    async def score(self, x: Arrived, targets: Tree) -> tuple[float, float]:
        """The loss of the last stage without random numbers, summed over the targets, and their number.

        The first member counts them, the others give zeros; each computes with its own pieces alone.
        """
        self.moves.start_pass("evaluation")
        tape = self._tape(False)
        _, loss = await tape.run(self._forward(tape, self._open_input(x), None, targets))
        tokens = float(targets.numel())
        return (0.0, 0.0) if self.network.rank else (float(loss.array) * tokens, tokens)

    async def _forward(self, tape: Tape, x: Value, random: KeyedRandom | None, targets: Tree) -> tuple[Value, Value]:
        """The output, and what leaves the stage of it."""
        output = await self._apply(tape, x, random, targets)
        return output, await self._output_of_stage(tape, output)

    async def _run_evaluation(self, tape: Tape, x: Value) -> Value:
        return await self._output_of_stage(tape, await self._part(tape, x))

    async def _output_of_stage(self, tape: Tape, value: Value) -> Value:
        """What leaves the stage: this member's piece, or after the last layer the whole, without a gradient."""
        if not self.is_last:
            return value
        whole = Shards(value.shards.mesh, value.shards.lengths, "")
        return await tape.move(Value(value.array, value.shards, False), whole)

    async def _apply(self, tape: Tape, x: Value, random: KeyedRandom | None, targets: Tree) -> Value:
        output = await self._part(tape, x, random)
        return await self.model.score(tape, output, self._place_tensor(targets)) if self.is_last else output

    async def _part(self, tape: Tape, x: Value, random: KeyedRandom | None = None) -> Value:
        """What the layers give, as it lies between two stages, or as the last layer leaves it."""
        output = await self.model.run_layers(tape, self.layers, x, self._pieces(), random)
        return output if self.is_last else await tape.move(output, self.model.stream_shards(output.shards.lengths))

    async def _revive(self, key: MicrobatchKey, random: KeyedRandom, targets: Tree) -> tuple[Tape, Value, Value]:
        """The tape of a microbatch (a new one if it is recomputed), its input and its output."""
        x, run = self.alive.pop(key)
        if run is None:
            self.moves.start_pass("forward")
            tape = self._tape(True, self.gathered)
            run = tape, await tape.run(self._apply(tape, x, random, targets))
        self.moves.start_pass("backward")
        return run[0], x, run[1]

    def _tape(
        self, training: bool, gathered: dict[str, torch.Tensor] | None = None, past: KeyValueCache | None = None
    ) -> Tape:
        queue = ContinuingQueue(self.executor, past) if past else self.executor
        return Tape(self.moves, queue, training, self.autocast, gathered=gathered)

    def _pieces(self) -> dict[str, torch.Tensor]:
        """Parameters as they lie, and buffers."""
        layouts, rank = self._layouts, self.network.rank
        pieces = {name: parameter.view(layouts[name].shape(rank)) for name, parameter in self.module.named_parameters()}
        return {**pieces, **dict(self.module.named_buffers())}

    def _place_tensor(self, whole: Arrived) -> Value:
        """This member's piece of inputs or targets."""
        tensor = open_tree(whole, self._device)
        if not isinstance(tensor, torch.Tensor):
            fact = f"a team takes inputs and targets of one tensor each (given: a {type(tensor).__name__})"
            raise UsageError(f"{fact}; give one, or use tensor 1")
        shards = self.model.input_shards(tuple(tensor.shape))
        return Value(shards.local(tensor, self.network.rank), shards, False)

    def _open_input(self, x: Arrived) -> Value:
        """This member's piece of what flows into the stage.

        Raises:
            WireError: a message that holds another piece.
        """
        if not isinstance(x, Message):
            return self._place_tensor(x)
        match x.note:
            case ["piece", *lengths] if lengths and all(type(size) is int and size >= 0 for size in lengths):
                return self._check_piece(x.blocks[0].torch(), self.model.stream_shards(tuple(lengths)))
        raise WireError(f"a message that is no piece of a stream ({x.note!r:.80}); install one release on every rank")

    def _check_piece(self, piece: torch.Tensor, shards: Shards) -> Value:
        shape = shards.shape(self.network.rank)
        if tuple(piece.shape) != shape:
            fact = f"a piece of another shape (member: {self.network.rank}, due: {shape}, came: {tuple(piece.shape)})"
            raise WireError(f"{fact}; give every rank the same layout")
        return Value(piece.to(self._device), shards, differentiable(piece))

    def _parcel(self, value: Value) -> Parcel:
        return Parcel((value.array.cpu(),), None if self.is_last else ["piece", *value.shards.lengths])

    def _seed(self, output: Value, gradient: Arrived | None, scale: float) -> torch.Tensor:
        """This member's piece of the gradient at which a backward begins."""
        if gradient is None:
            return torch.full_like(output.array, scale)
        return self._check_piece(open_tree(gradient, self._device), output.shards).array

    def _pack_gradient(self, x: Value) -> Parcel | None:
        if self.is_first:
            return None
        return Parcel(((torch.zeros_like(x.array) if x.gradient is None else x.gradient).cpu(),))


def input_half(entry: Computation) -> WeightWork | None:
    """Walk one computation back to its inputs alone; returns its weight half, None where no parameter takes part."""
    weight_inputs = [pair for pair in entry.inputs if pair[0].trained and pair[0].weight]
    if not entry.parameters and not weight_inputs:
        compute_back(entry)
        return None
    gradient = entry.result.gradient
    value_inputs = [pair for pair in entry.inputs if pair[0].trained and not pair[0].weight]
    if gradient is None:
        return None
    gradients: list[torch.Tensor | None] = [None] * len(value_inputs)
    half = WeightHalf()
    if entry.produced.requires_grad:
        gradients, half = backward_input([entry.produced], [gradient], [leaf for _, leaf in value_inputs])
    for (value, leaf), value_gradient in zip(value_inputs, gradients, strict=True):
        value.add(torch.zeros_like(leaf) if value_gradient is None else value_gradient)

    def weight_half() -> None:
        half.run()
        for value, leaf in weight_inputs:
            value.add(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)

    return weight_half
