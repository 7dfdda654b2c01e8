"""A user's row of layers, as the planner takes a model: every size is measured, no closed form is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from pipelined.api.data.batches import BatchFeed
from pipelined.api.planning.layer_sizes import LayerSizes, Storages, measure_sizes, optimizer_bytes, sizes_in_autocast
from pipelined.api.user_optimizer import OptimizerBuilder, UserOptimizer
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages, name_buckets
from pipelined.simulation import Parameters, StageCosts, Workload
from pipelined.simulation.workload import NUMBERS_OF_A_MASTER
from pipelined.training.exchange.parcels import Tree, random_values
from pipelined.training.graph.recompute import selecting_attention
from pipelined.training.job.check_model import ModelError
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.batch import Batch, convert_floats, rows_of_batch, slice_rows
from pipelined.training.models.split.split_row import MemberRow
from pipelined.training.models.user_model import UserModel

IMPOSSIBLE = 1 << 60
"""Bytes of a microbatch that the model refuses: no rank has the memory, so that no plan has such microbatches."""


@dataclass(frozen=True)
class LayerRowModel:
    """A model and a batch of one step; see `pipelined.planner.planner_model.PlannerModel`.

    Args:
        model: the layers, with the loss.
        batch_of_step: inputs and targets. Without targets (None) what the loss keeps is not counted.
        make_optimizer: builds the optimizer; its state is measured, and its update timed.
        precision: the dtype, and how activations and gradients travel.
        fixed: what the user has chosen: fields and knobs of `Plan`, and `recompute`.
    """

    model: UserModel | MemberRow
    batch_of_step: Batch
    make_optimizer: OptimizerBuilder
    precision: Numerics
    fixed: Mapping[str, Any]
    _sizes: dict[int, list[LayerSizes]] = field(default_factory=dict)
    _refused_rows: set[int] = field(default_factory=set)

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.model.identity()

    @property
    def batch(self) -> int:
        return rows_of_batch(self.batch_of_step, "the batch")

    @property
    def sequence(self) -> int:
        """1: every cost is that of a whole row of the batch."""
        return 1

    @property
    def all_reduce(self) -> str:
        return self.precision.all_reduce

    @property
    def compress(self) -> str:
        return self.precision.compress

    @property
    def has_masters(self) -> bool:
        return self.precision.has_masters

    @property
    def layer_costs(self) -> list[float]:
        """The weights by which training cuts the layers, too."""
        return self.model.costs(1)

    @property
    def operations(self) -> list[float]:
        """Floating-point operations of each layer's forward for one row of the batch."""
        return [size.operations / self.batch for size in self.sizes(self.batch)]

    def build(self) -> Any:
        return self.model

    def build_member(self) -> Any:
        """See `MeasuredModel`: no plan splits these layers."""

    def numerics(self) -> Any:
        return self.precision

    def optimizer(self) -> Any:
        return UserOptimizer(self.make_optimizer)

    def feed(self, rows: int) -> Any:
        feed = BatchFeed([self.batch_of_step])
        feed.configure(rows, self.precision.dtype, cached_steps=2)
        return feed

    def random_input(self, layer: int, rows: int) -> Any:
        return random_values(self.sizes(rows)[layer].input_tree, self.precision.dtype)

    def sizes(self, rows: int) -> list[LayerSizes]:
        """What each layer computes, keeps and returns for this number of rows; measured once."""
        if rows not in self._sizes:
            try:
                self._sizes[rows] = self._measure_layers(rows, "meta")
            except Exception:  # whatever a layer raises that needs values
                self._sizes[rows] = self._measure_layers(rows, "cpu")
        return self._sizes[rows]

    def workload(self, plan: Plan) -> Workload:
        cut = partition(self.layer_costs, plan.depth)
        if not all(map(self._takes, {plan.microbatch_size, plan.rows})):
            return Workload([StageCosts(activation_bytes=IMPOSSIBLE)] * plan.depth, self.parameters(cut))
        workload = Workload([self._stage(layers, plan.microbatch_size) for layers in cut], self.parameters(cut))
        return workload.with_divided_updates(plan) if self.precision.shard_optimizer else workload

    def parameters(self, cut: Sequence[range]) -> list[Parameters]:
        """The parameters of each bucket, as the trainer groups them."""
        stage_names = dict[int, list[str]]()
        for stage, layers in enumerate(cut):
            names = [name for layer in layers for name in self._tensors[layer].parameters]
            stage_names[stage] = list(dict.fromkeys(names))  # layers may share one
        parameters = {name: parameter for layer in self._tensors for name, parameter in layer.parameters.items()}
        buckets = name_buckets(stage_names)
        return [_bucket(stages, [parameters[name] for name in names]) for stages, names in buckets.items()]

    def frozen_bytes(self, layers: range) -> int:
        """Bytes of these layers' buffers, and of their parameters without a gradient."""
        return sum(self._tensors[layer].frozen_bytes for layer in layers)

    def _takes(self, rows: int) -> bool:
        """Whether the model takes microbatches of this number of rows; a traced one may not."""
        if rows not in self._refused_rows:
            try:
                self.sizes(rows)
            except ModelError:
                self._refused_rows.add(rows)
        return rows not in self._refused_rows

    def _measure_layers(self, rows: int, device: str) -> list[LayerSizes]:
        dtype = self.precision.dtype

        def move(tree: Tree) -> Tree:
            rows_of_tree = convert_floats(slice_rows(tree, 0, rows), dtype)
            return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), rows_of_tree)

        def loss(output: Tree, targets: Tree) -> Any:
            return None if targets is None else self.model.loss(output, targets)

        inputs, targets = map(move, self.batch_of_step)
        parts = [self.model.build(range(n, n + 1), dtype, device, seed=0) for n in range(self.model.layers)]
        with torch.random.fork_rng(devices=[]), selecting_attention(self.precision.recompute_attention):
            if self.precision.autocast is not None:
                return sizes_in_autocast(parts, inputs, targets, loss, self.precision.autocast)
            return measure_sizes(parts, inputs, lambda output: loss(output, targets))

    def _stage(self, layers: range, rows: int) -> StageCosts:
        sizes = self.sizes(rows)[layers.start : layers.stop]
        boundary = {**sizes[0].input_storages, **sizes[-1].output_storages}
        kept_storages = dict(boundary)
        for size in sizes:
            kept_storages |= size.kept_storages
        forward = max(1.0, sum(size.operations for size in sizes))
        return StageCosts(
            forward=forward,
            backward=2 * forward,
            message_bytes=_total(sizes[-1].output_storages),
            activation_bytes=_total(kept_storages),
            boundary_bytes=_total(boundary),
            frozen_bytes=self.frozen_bytes(layers),
        )

    @cached_property
    def _tensors(self) -> list["_LayerTensors"]:
        """The parameters and buffers of each layer; the optimizer's state is measured by one update of each."""
        return [self._measure_tensors(layer) for layer in range(self.model.layers)]

    def _measure_tensors(self, layer: int) -> "_LayerTensors":
        try:
            return self._build_layer(layer, "meta")
        except Exception:  # whatever a layer or an optimizer raises that needs values
            return self._build_layer(layer, "cpu")

    def _build_layer(self, layer: int, device: str) -> "_LayerTensors":
        part = self.model.build(range(layer, layer + 1), self.precision.dtype, device, seed=0)
        masters = self.precision.masters or self.precision.dtype
        parameters = dict(part.named_parameters())
        sizes = {name: (parameter.numel(), parameter.itemsize) for name, parameter in parameters.items()}
        parameter_bytes = {name: parameter.nbytes for name, parameter in parameters.items()}
        buffers = sum(tensor.nbytes for tensor in part.buffers())
        state_bytes = optimizer_bytes(part.to(masters), UserOptimizer(self.make_optimizer).build)
        master_bytes = NUMBERS_OF_A_MASTER * masters.itemsize if self.precision.has_masters else 0
        trained_parameters = {
            name: _TrainedParameter(*sizes[name], nbytes + master_bytes * sizes[name][0])
            for name, nbytes in state_bytes.items()
        }
        frozen_bytes = sum(nbytes for name, nbytes in parameter_bytes.items() if name not in state_bytes)
        return _LayerTensors(trained_parameters, buffers + frozen_bytes)


@dataclass(frozen=True)
class _TrainedParameter:
    """A trained parameter: how many numbers it has, the bytes of each, and what the optimizer keeps for all."""

    elements: int
    itemsize: int
    optimizer_bytes: int


def _bucket(stages: Stages, parameters: Sequence[_TrainedParameter]) -> Parameters:
    return Parameters(
        stages,
        elements=sum(parameter.elements for parameter in parameters),
        tensors=len(parameters),
        itemsize=parameters[0].itemsize,
        optimizer_bytes=sum(parameter.optimizer_bytes for parameter in parameters),
    )


@dataclass(frozen=True)
class _LayerTensors:
    """The tensors of one layer."""

    parameters: Mapping[str, _TrainedParameter]
    frozen_bytes: int


def _total(storages: Storages) -> int:
    return sum(storages.values())
