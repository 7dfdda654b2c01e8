"""A stage with weights that change while microbatches are under way: a backward uses the weights of its forward.

The caller decides before the forward which versions a microbatch uses; this module sets them for each computation.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pipelined.programs.updates.bucket_names import Stages
from pipelined.schedules import Updates
from pipelined.training.exchange.parcels import Parcel, Tree
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.job.rank_context import MicrobatchKey
from pipelined.training.optimizer.state import VERSION_PREFIX
from pipelined.training.segments.weight_versions import Leaves, Versions
from pipelined.training.stages.stage import Stage
from pipelined.training.sums.bucket import Bucket


class FunctionalModule(nn.Module):
    """A module that computes with given values instead of its parameters inside `using`, else with its parameters."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.leaves: dict[str, torch.Tensor] | None = None

    @contextmanager
    def using(self, leaves: Leaves) -> Iterator[None]:
        """Use these values instead of the parameters inside the `with` block."""
        self.leaves = dict(leaves)
        try:
            yield
        finally:
            self.leaves = None

    def weights(self) -> Mapping[str, torch.Tensor]:
        """What a forward computes with now, by name."""
        return dict(self.module.named_parameters()) if self.leaves is None else self.leaves

    def forward(self, x: Tree) -> Tree:
        if self.leaves is None:
            return self.module(x)
        return functional_call(self.module, self.leaves, (x,))


@dataclass
class VersionedStage:
    """A stage, and the versions that each microbatch under way uses.

    Args:
        stage: the stage.
        module: its module.
        versions: the versions of each of its buckets, by the bucket's stages.
    """

    stage: Stage
    module: FunctionalModule
    versions: Mapping[Stages, Versions]
    _acquired: dict[int, tuple[Mapping[Stages, int], Leaves]] = field(default_factory=dict)

    @property
    def index(self) -> int:
        """The number of the stage in the pipeline."""
        return self.stage.index

    def acquire(self, microbatch: int, chosen: Mapping[Stages, int]) -> None:
        """Keep these versions, one per bucket, for a microbatch until its backward."""
        leaves: dict[str, torch.Tensor] = {}
        for stages, version in chosen.items():
            leaves |= self.versions[stages].acquire(version)
        self._acquired[microbatch] = chosen, leaves

    def release(self, microbatch: int) -> None:
        """Release a microbatch's versions."""
        chosen, _ = self._acquired.pop(microbatch)
        for stages, version in chosen.items():
            self.versions[stages].release(version)

    def using(self, microbatch: int) -> AbstractContextManager[None]:
        """Use the versions of a microbatch instead of the newest."""
        return self.module.using(self._acquired[microbatch][1])

    def older(self, name: str) -> dict[str, torch.Tensor]:
        """A parameter's older versions that the next step uses, as fields of a checkpoint."""
        return {
            f"{VERSION_PREFIX}{version}": leaves[name].detach()
            for versions in self.versions.values()
            if name in versions.bucket.parameters
            for version, leaves in versions.older().items()
        }

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Restore the results of `older` for every parameter.

        A parameter without older versions, because it was frozen when it was saved, has its one value in all of them.
        """
        for versions in self.versions.values():
            parameters = versions.bucket.parameters
            saved = {key for name in parameters for key in state[name] if key.startswith(VERSION_PREFIX)}
            older = dict[int, dict[str, torch.Tensor]]()
            for key in saved:
                values = {name: state[name].get(key, state[name]["value"]) for name in parameters}
                version = int(key.removeprefix(VERSION_PREFIX))
                older[version] = {name: values[name].to(p, copy=True) for name, p in parameters.items()}
            versions.restore(older)


def build_versions(
    stage: Stage,
    buckets: Sequence[Bucket],
    settings: OptimizerSettings,
    optimizer: torch.optim.Optimizer,
    updates: Updates,
    *,
    kind: type[Versions] = Versions,
) -> VersionedStage:
    """Keep the weights of a stage in versions; its module computes with those that a microbatch has acquired.

    Args:
        buckets: the buckets of the stage.
        optimizer: of all its parameters; each bucket gets one of its own, with the same state.
        updates: states how old a version a forward uses.
        kind: of the versions of each bucket.
    """
    stage.module = module = FunctionalModule(stage.module)
    stage.weights = module.weights
    versions = {}
    for bucket in buckets:
        bucket_optimizer = settings.build(bucket.parameters)
        bucket_optimizer.state = optimizer.state
        versions[bucket.stages] = kind(bucket, bucket_optimizer, updates.delay or 0)
    return VersionedStage(stage, module, versions)


@dataclass(frozen=True)
class StepStage:
    """The interface of a versioned stage for the worker of one step, with that step's microbatches counted from 0.

    It calls the stage with the weights of the microbatch.

    Args:
        versioned: the stage.
        first: the step's first microbatch in the segment.
    """

    versioned: VersionedStage
    first: int

    def forward(self, key: MicrobatchKey, *arguments: Any) -> Parcel:
        with self._use_weights(key) as alive:
            return self.versioned.stage.forward(alive, *arguments)

    def backward(self, key: MicrobatchKey, *arguments: Any) -> Parcel | None:
        with self._use_weights(key) as alive:
            return self.versioned.stage.backward(alive, *arguments)

    def backward_input(self, key: MicrobatchKey, *arguments: Any) -> Parcel | None:
        with self._use_weights(key) as alive:
            return self.versioned.stage.backward_input(alive, *arguments)

    def backward_weight(self, key: MicrobatchKey) -> None:
        with self._use_weights(key) as alive:
            self.versioned.stage.backward_weight(alive)

    @contextmanager
    def _use_weights(self, key: MicrobatchKey) -> Iterator[MicrobatchKey]:
        """The name of a microbatch in the segment; its weights are in use inside the block."""
        pipe = key[0]
        microbatch = self.first + key[1]
        with self.versioned.using(microbatch):
            yield pipe, microbatch
