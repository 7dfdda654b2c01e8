"""The running statistics of a stage: those of a plain loop that computes the microbatches of every step in their order.

A batch norm normalises by the statistics of one microbatch, and averages them over time in its buffers. A replica of a
stage computes only some microbatches, and perhaps in another order. So each forward only notes the statistics of its
microbatch; after the step all replicas exchange theirs, and average them in the order of the microbatches. All hold
the same statistics then, whatever the schedule and the number of replicas.

The statistics are caught where a batch norm or an instance norm is computed (a call of torch, or a node of an exported
graph). What a layer writes to a buffer by other means is noted, too: the forwards that follow read it, and the buffer
has it after the step. If there are several replicas, they would differ, and the model is refused.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from pipelined.errors import UsageError
from pipelined.training.exchange.parcels import Parcel
from pipelined.training.job.rank_context import RankContext
from transports import Message

T = TypeVar("T")
COUNTER = "num_batches_tracked"
OPERATOR_ARGUMENTS = (
    "input",
    "weight",
    "bias",
    "running_mean",
    "running_var",
    "training",
    "momentum",
    "eps",
    "cudnn_enabled",
)
FUNCTION_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
NORMS: Mapping[Any, Sequence[str]] = {
    functional.batch_norm: FUNCTION_ARGUMENTS,
    functional.instance_norm: tuple("use_input_stats" if name == "training" else name for name in FUNCTION_ARGUMENTS),
    torch.batch_norm: OPERATOR_ARGUMENTS,
    torch.instance_norm: tuple("use_input_stats" if name == "training" else name for name in OPERATOR_ARGUMENTS),
    torch.ops.aten.batch_norm.default: OPERATOR_ARGUMENTS,
    torch.ops.aten.instance_norm.default: tuple(
        "use_input_stats" if name == "training" else name for name in OPERATOR_ARGUMENTS
    ),
}
"""The calls that write running statistics, with the names of their arguments."""


class NormCall(NamedTuple):
    """One call of a norm: the names of its buffers, its momentum, and the statistics of its input."""

    names: tuple[str, str]
    momentum: float
    statistics: tuple[torch.Tensor, torch.Tensor]


@dataclass
class ForwardNotes:
    """What a forward of one microbatch would have changed: running statistics and the counters beside them."""

    calls: list[NormCall] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)


class RunningStatistics:
    """The running statistics of one stage on one rank.

    Args:
        module: the stage.
        stage: its number, for messages.
        replicas: the ranks that hold the stage.

    Attributes:
        has_buffers: whether the stage has persistent buffers; else nothing is noted, and nothing need be merged.
    """

    def __init__(self, module: nn.Module, stage: int, replicas: int):
        self._stage = stage
        self._replicas = replicas
        self._steps = dict[int, dict[int, ForwardNotes]]()
        self._written = dict[int, dict[str, torch.Tensor]]()  # by step: what layers wrote to buffers by themselves
        self._owners = {
            f"{path}.{leaf}".lstrip("."): (owner, leaf)
            for path, owner in module.named_modules()
            for leaf, _ in owner.named_buffers(recurse=False)
            if leaf not in owner._non_persistent_buffers_set
        }
        self._cumulative = {
            f"{path}.running_{kind}".lstrip(".")
            for path, owner in module.named_modules()
            for kind in ("mean", "var")
            if isinstance(owner, _BatchNorm) and owner.momentum is None
        }
        self.has_buffers = bool(self._owners)

    @property
    def noted_steps(self) -> Collection[int]:
        """The steps of which this replica has noted something that it has not taken."""
        return self._steps.keys()

    def run_noting(self, forward: Callable[[], T], step: int, microbatch: int) -> T:
        """Run the first forward of a microbatch; its statistics are noted, and the buffers stay as they are.

        Raises:
            UsageError: a layer writes a buffer by itself, and the stage has several replicas.
        """
        if not self.has_buffers:
            return forward()
        originals = {name: owner._buffers[leaf] for name, (owner, leaf) in self._owners.items()}
        newest = originals | {name: value for values in self._written.values() for name, value in values.items()}
        copies = {name: value.clone() for name, value in newest.items() if value is not None}
        try:
            self._put(copies)
            with _Observer({id(copy): name for name, copy in copies.items()}) as observer:
                result = forward()
            after = {name: owner._buffers[leaf] for name, (owner, leaf) in self._owners.items()}
        finally:
            self._put(originals)
        tensors_after = {name: tensor for name, tensor in after.items() if tensor is not None}
        written = {
            name: tensor
            for name, tensor in tensors_after.items()
            if name not in copies or tensor is not copies[name] or tensor._version  # changed in place
        }
        notes = ForwardNotes(observer.calls)
        for name, value in written.items():
            if name.endswith(COUNTER):
                notes.counted[name] = int(value) - int(originals[name])
            else:
                self._keep(step, name, originals[name], value)
        self._steps.setdefault(step, {})[microbatch] = notes
        return result

    def add_notes(self, step: int, microbatch: int, calls: Sequence[NormCall]) -> None:
        """Note the norms of a first forward that is no call of torch; each counts one batch."""
        modules = [call.names[0].rpartition(".")[0] for call in calls]
        counters = [f"{module}.{COUNTER}" for module in modules if f"{module}.{COUNTER}" in self._owners]
        self._steps.setdefault(step, {})[microbatch] = ForwardNotes(list(calls), dict(Counter(counters)))

    def take(self, step: int) -> Parcel:
        """What this replica has noted in a step, as it is sent to the others; it is forgotten here."""
        forwards = sorted(self._steps.pop(step, {}).items())
        tensors = [tensor.cpu() for _, notes in forwards for call in notes.calls for tensor in call.statistics]
        note = [[m, [[*call.names, call.momentum] for call in notes.calls], notes.counted] for m, notes in forwards]
        return Parcel(tuple(tensors), note)

    def drop(self) -> None:
        """Forget what is noted of steps that were refused: the buffers stay as they are."""
        self._steps.clear()
        self._written.clear()

    @torch.no_grad()
    def merge(self, step: int, replicas: Iterable[Parcel | Message]) -> None:
        """Average the statistics of a step over all its microbatches, in their order; keep its other writes.

        Args:
            replicas: the `take()` of every replica, this one too.
        """
        for name, value in self._written.pop(step, {}).items():
            owner, leaf = self._owners[name]
            owner.get_buffer(leaf).copy_(value)
        forwards = sorted((notes for parcel in replicas for notes in _read(parcel)), key=lambda notes: notes[0])
        counts = Counter[str]()
        for _, notes in forwards:
            for call in notes.calls:
                self._average(call, counts)
        for name, (owner, leaf) in self._owners.items():
            if count := sum(notes.counted.get(name, 0) for _, notes in forwards):
                owner.get_buffer(leaf).add_(count)

    def _average(self, call: NormCall, counts: Counter[str]) -> None:
        """Take one call into the running statistics; without a momentum they are the mean over all calls."""
        for name, value in zip(call.names, call.statistics, strict=True):
            owner, leaf = self._owners[name]
            momentum = call.momentum
            if name in self._cumulative:
                counts[name] += 1
                momentum = 1.0 / (int(owner.get_buffer(COUNTER)) + counts[name])
            buffer = owner.get_buffer(leaf)
            buffer.mul_(1.0 - momentum).add_(value.to(buffer), alpha=momentum)

    def _keep(self, step: int, name: str, buffer: torch.Tensor | None, value: torch.Tensor) -> None:
        """Note what a layer wrote to a buffer by itself."""
        if self._replicas > 1 or buffer is None or buffer.shape != value.shape:
            fact = f"a layer of stage {self._stage} writes its buffer {name} (ranks with this stage: {self._replicas})"
            remedy = "train one pipeline of one direction, or register it with persistent=False if it is no state"
            raise UsageError(f"{fact}, so replicas would differ; {remedy} of the model")
        self._written.setdefault(step, {})[name] = value.detach().to(buffer, copy=True)

    def _put(self, tensors: Mapping[str, torch.Tensor | None]) -> None:
        for name, tensor in tensors.items():
            owner, leaf = self._owners[name]
            setattr(owner, leaf, tensor)


class StatisticsExchange:
    """The exchange of running statistics after a step, among the holders of each stage of a rank.

    Args:
        stages: the statistics of the stages that the rank holds, by number.
    """

    def __init__(self, context: RankContext, stages: Mapping[int, RunningStatistics]):
        self._context = context
        self._stages = {index: statistics for index, statistics in stages.items() if statistics.has_buffers}

    async def merge_until(self, step: int) -> None:
        """Merge every step before this one that is not merged yet. This rank must be the only holder of its stages."""
        noted_steps = {noted for statistics in self._stages.values() for noted in statistics.noted_steps}
        for noted_step in sorted(noted_steps):
            if noted_step < step:
                await self.merge(noted_step)

    async def merge(self, step: int) -> None:
        """Make the statistics those of all microbatches of a step, the same on all holders of a stage."""
        actor = self._context.actor
        for index, statistics in self._stages.items():
            own_parcel = statistics.take(step)
            key = ("statistics", step, index)
            peers = [
                rank for rank in self._context.plan.holders(index, member=self._context.member) if rank != actor.rank
            ]
            sends = [actor.tell(peer, key, *own_parcel.tensors, note=own_parcel.note) for peer in peers]
            messages = [await actor.receive(peer, key) for peer in peers]
            await asyncio.gather(*sends)  # so that their bytes are counted
            await self._context.executor.run("statistics", partial(statistics.merge, step, [own_parcel, *messages]))

    def drop(self) -> None:
        """Forget the steps that are not merged, as they were refused."""
        for statistics in self._stages.values():
            statistics.drop()


class _Observer(TorchFunctionMode):
    """Notes what the norms of a forward would write to their running statistics.

    Args:
        names: the names of the buffers, by identity.
    """

    def __init__(self, names: Mapping[int, str]):
        super().__init__()
        self._names = names
        self.calls = list[NormCall]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names, kwargs = NORMS.get(func), kwargs or {}
        if names is None:
            return func(*args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        mean, var = arguments.get("running_mean"), arguments.get("running_var")
        computes = arguments.get("training", arguments.get("use_input_stats", True))
        if mean is None or var is None or id(mean) not in self._names or not computes:
            return func(*args, **kwargs)
        statistics = torch.zeros_like(mean), torch.zeros_like(var)
        replaced = {"running_mean": statistics[0], "running_var": statistics[1], "momentum": 1.0}
        positional = [replaced.get(name, value) for name, value in zip(names, args, strict=False)]
        keywords = {name: value for name, value in {**kwargs, **replaced}.items() if name not in names[: len(args)]}
        result = func(*positional, **keywords)
        buffer_names = self._names[id(mean)], self._names[id(var)]
        self.calls.append(NormCall(buffer_names, float(arguments.get("momentum", 0.1)), statistics))
        return result


def _read(parcel: Parcel | Message) -> list[tuple[int, ForwardNotes]]:
    """What a replica has noted, by microbatch."""
    blocks = [block.torch() for block in parcel.blocks] if isinstance(parcel, Message) else parcel.tensors
    pairs = zip(blocks[::2], blocks[1::2], strict=True)  # mean and variance of each call
    notes = []
    for microbatch, calls, counted in parcel.note:
        norm_calls = [NormCall((mean, var), momentum, next(pairs)) for mean, var, momentum in calls]
        notes.append((microbatch, ForwardNotes(norm_calls, counted)))
    return notes
