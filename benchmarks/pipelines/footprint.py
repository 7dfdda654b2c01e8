"""What one rank holds, counted as it trains: parameters, gradients, optimizer state, and activations while they live.

Storages are counted while they are in use, each once; nothing is computed from a model's sizes or a schedule, so that a
count may exceed what either promises.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding.operators.tape import Computation, Tape
from pipelined.training.exchange.parcels import Parcel, Tree, tensors_of
from pipelined.training.graph.recompute import Ticket
from pipelined.training.job.rank_context import MicrobatchKey
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.versioned_stage import VersionedStage
from pipelined.training.stages.stage import Stage
from pipelined.training.stages.team_stage import TeamStage

Storages = dict[int, int]
"""Bytes by address."""

Held = tuple[int, weakref.ref]
"""Bytes of a storage, and whether it is still there."""


@dataclass
class Kept:
    """What a rank keeps between forwards and backwards, over all its stages.

    Args:
        counted: storages that are counted elsewhere: the parameters.

    Attributes:
        alive: the storages of every microbatch now alive in a stage.
        peak_bytes: the most bytes ever alive at once.
        peak_microbatches: the most microbatches ever alive at once.
        peak_versions: the most bytes of all versions of the weights at once; 0 for a schedule with a flush.
    """

    counted: Storages
    alive: dict[tuple[int, MicrobatchKey], dict[int, Held]] = field(default_factory=dict)
    peak_bytes: int = 0
    peak_microbatches: int = 0
    peak_versions: int = 0
    _bytes: int = 0

    def begin(self, which: tuple[int, MicrobatchKey]) -> None:
        """A microbatch comes alive in a stage."""
        self.alive[which] = {}
        self.peak_microbatches = max(self.peak_microbatches, len(self.alive))

    def weigh(self, held: VersionedStage) -> None:
        """Count the versions of a stage's weights that there are now."""
        older = (leaves for versions in held.versions.values() for leaves in versions.older().values())
        newest = (versions.bucket.parameters for versions in held.versions.values())
        self.counted = storages(tensor for values in (*older, *newest) for tensor in values.values())
        self.peak_versions = max(self.peak_versions, sum(self.counted.values()))

    def add(self, which: tuple[int, MicrobatchKey], tensor: torch.Tensor) -> torch.Tensor:
        """A tensor is kept for this microbatch; returns it."""
        storage = tensor.untyped_storage()
        address, mine = storage.data_ptr(), self.alive[which]
        if address not in mine and address not in self.counted:
            mine[address] = storage.nbytes(), weakref.ref(storage)
            self._bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._bytes)
        return tensor

    def look(self, which: tuple[int, MicrobatchKey]) -> None:
        """Take out what has been let go of."""
        mine = self.alive[which]
        for address in [address for address, (_, there) in mine.items() if there() is None]:
            self._bytes -= mine.pop(address)[0]

    def end(self, which: tuple[int, MicrobatchKey]) -> None:
        """Its backward is done."""
        self._bytes -= sum(nbytes for nbytes, _ in self.alive.pop(which).values())


@dataclass(frozen=True)
class CountedStage:
    """A stage that writes down what its autograd graphs and its own table keep.

    Args:
        held: its versions; None: it has none.
    """

    stage: Stage
    kept: Kept
    held: VersionedStage | None = None

    @property
    def index(self) -> int:
        return self.stage.index

    def forward(self, which: MicrobatchKey, x: Any, random: KeyedRandom, targets: Any = None) -> Parcel:
        if self.held is not None:
            self.kept.weigh(self.held)
        key = self.stage.index, which
        self.kept.begin(key)
        output = self.stage.forward(which, x, random, targets)
        for tensor in with_saved(self.stage.alive[which]):
            self.kept.add(key, tensor)
        return output

    def backward(
        self, which: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Any:
        with self._recomputing((self.stage.index, which)):
            back = self.stage.backward(which, gradient, scale, random, targets)
        self.kept.end((self.stage.index, which))
        return back

    def backward_input(
        self, which: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Any:
        key = self.stage.index, which
        with self._recomputing(key):
            back = self.stage.backward_input(which, gradient, scale, random, targets)
        self.kept.look(key)
        for tensor in self.stage.pending[which].gradients:
            self.kept.add(key, tensor)
        return back

    def backward_weight(self, which: MicrobatchKey) -> None:
        self.stage.backward_weight(which)
        self.kept.end((self.stage.index, which))

    @contextmanager
    def _recomputing(self, key: tuple[int, MicrobatchKey]) -> Iterator[None]:
        """Count what a recomputed forward saves, too, as soon as it is done.

        Its graph is looked at, as hooks on what is saved would keep an input half from letting go of it.
        """
        revived = self.stage._revive

        def counted(*arguments: Any) -> tuple[Tree, Tree]:
            x, output = revived(*arguments)
            self.kept.look(key)
            for tensor in with_saved((x, output)):
                self.kept.add(key, tensor)
            return x, output

        self.stage._revive = counted if self.stage.recompute else revived
        try:
            yield
        finally:
            del self.stage._revive


@dataclass(frozen=True)
class CountedTeamStage:
    """A stage of a team that writes down what this member's tapes keep; with the verbs of `CountedStage`."""

    stage: TeamStage
    kept: Kept

    @property
    def index(self) -> int:
        return self.stage.index

    async def forward(self, which: MicrobatchKey, x: Any, random: KeyedRandom, targets: Any = None) -> Parcel:
        key = self.stage.index, which
        self.kept.begin(key)
        output = await self.stage.forward(which, x, random, targets)
        live = self.stage.alive[which]
        self.kept.add(key, live.x.array)
        if live.run is not None:
            self._add(key, live.run[0])
        return output

    async def backward(
        self, which: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Any:
        with self._recomputing((self.stage.index, which)):
            back = await self.stage.backward(which, gradient, scale, random, targets)
        self.kept.end((self.stage.index, which))
        return back

    async def backward_input(
        self, which: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Any:
        with self._recomputing((self.stage.index, which)):
            return await self.stage.backward_input(which, gradient, scale, random, targets)

    async def backward_weight(self, which: MicrobatchKey) -> None:
        await self.stage.backward_weight(which)
        self.kept.end((self.stage.index, which))

    def _add(self, key: tuple[int, MicrobatchKey], tape: Tape) -> None:
        graphs = (entry.produced for entry in tape._entries if isinstance(entry, Computation))
        values = (value.array for value in tape.values())
        for tensor in (*values, *(each for graph in graphs for each in saved([graph.grad_fn]))):
            self.kept.add(key, tensor)

    @contextmanager
    def _recomputing(self, key: tuple[int, MicrobatchKey]) -> Iterator[None]:
        """Count what a recomputed forward keeps, too, as soon as it is done."""
        revived = self.stage._revive

        async def counted(*arguments: Any) -> Any:
            tape, x, output = await revived(*arguments)
            self._add(key, tape)
            return tape, x, output

        self.stage._revive = counted if self.stage.recompute else revived  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.stage._revive


def with_saved(tree: Tree) -> Iterator[torch.Tensor]:
    """The tensors of a tree, and those that their graphs keep for a backward."""
    tensors = tensors_of(tree)
    return chain(tensors, saved([tensor.grad_fn for tensor in tensors]))


def saved(roots: Sequence[Node | None]) -> Iterator[torch.Tensor]:
    """The tensors that graphs keep for their backwards."""
    seen, waiting = set(), [*roots]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [used for used, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                ticket = getattr(getattr(node, f"_raw{name}", None), "data", None)
                value = ticket.run.inputs.saved_tensors if isinstance(ticket, Ticket) else getattr(node, name)
                yield from filter(torch.is_tensor, value if isinstance(value, tuple) else (value,))


def count_activations(trainer: RankTrainer) -> Kept:
    """Count from now on what this rank's stages keep alive."""
    kept = Kept(storages(trainer.local.parameters.values()))
    if (held := trainer.versions) is not None:
        held.stage = CountedStage(held.stage, kept, held)  # type: ignore[assignment]
        return kept
    stages: Mapping[int, Any] = {
        index: CountedTeamStage(stage, kept) if isinstance(stage, TeamStage) else CountedStage(stage, kept)
        for index, stage in trainer.context.stages.items()
    }
    trainer.context = replace(trainer.context, stages=stages)
    return kept


def storages(tensors: Iterable[torch.Tensor]) -> Storages:
    """The distinct storages under these tensors."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of parameters, of their gradients, and of what the optimizer keeps, as they lie in memory now."""
    values = list(parameters)
    groups = {
        "parameters": values,
        "gradients": [p.grad for p in values if p.grad is not None],
        "optimizer": [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)],
    }
    return {name: sum(storages(tensors).values()) for name, tensors in groups.items()}
