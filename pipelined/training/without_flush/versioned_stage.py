"""A stage whose weights are updated while microbatches are under way: each goes back with the weights it went in with.

The rule: which versions a microbatch uses is decided by others, before its forward; here they are put in place for each
computation. Knows stages and versions; must not know updates or time.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pipelined.training.stage import Alive, Stage
from pipelined.training.without_flush.versions import Leaves, Versions


class Lent(nn.Module):
    """A module that computes with values put in place of its parameters; with its own where there are none."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.leaves: dict[str, torch.Tensor] | None = None

    @contextmanager
    def using(self, leaves: Leaves) -> Iterator[None]:
        """These values in place of the parameters, inside the `with` block."""
        self.leaves = dict(leaves)
        try:
            yield
        finally:
            self.leaves = None

    def forward(self, *arguments: Any) -> torch.Tensor:
        if self.leaves is None:
            return self.module(*arguments)
        return functional_call(self.module, self.leaves, arguments)


@dataclass
class VersionedStage:
    """A stage with what each microbatch under way has been lent.

    Args:
        stage: its module is a `Lent`.
        versions: of each of its buckets.
    """

    stage: Stage
    versions: Sequence[Versions]
    _lent: dict[int, tuple[tuple[int, ...], Leaves]] = field(default_factory=dict)

    def lend(self, microbatch: int, chosen: Sequence[int]) -> None:
        """Let a microbatch use these versions, one a bucket, until its backward."""
        leaves: dict[str, torch.Tensor] = {}
        for versions, version in zip(self.versions, chosen, strict=True):
            leaves |= versions.lend(version)
        self._lent[microbatch] = tuple(chosen), leaves

    def give_back(self, microbatch: int) -> None:
        """Let a microbatch's versions go."""
        chosen, _ = self._lent.pop(microbatch)
        for versions, version in zip(self.versions, chosen, strict=True):
            versions.give_back(version)

    def using(self, microbatch: int) -> AbstractContextManager[None]:
        """The versions of a microbatch in place of the newest."""
        return self.stage.module.using(self._lent[microbatch][1])


@dataclass(frozen=True)
class StepStage:
    """A versioned stage as the worker of one step sees it, which counts that step's microbatches from 0.

    What it does is the stage's own, with the microbatch's weights in place.

    Args:
        held: the stage.
        first: the step's first microbatch in the stretch.
    """

    held: VersionedStage
    first: int

    def forward(self, which: Alive, *arguments: Any) -> torch.Tensor:
        with self._lent(which) as alive:
            return self.held.stage.forward(alive, *arguments)

    def backward(self, which: Alive, *arguments: Any) -> torch.Tensor | None:
        with self._lent(which) as alive:
            return self.held.stage.backward(alive, *arguments)

    def backward_input(self, which: Alive, *arguments: Any) -> torch.Tensor | None:
        with self._lent(which) as alive:
            return self.held.stage.backward_input(alive, *arguments)

    def backward_weight(self, which: Alive) -> None:
        with self._lent(which) as alive:
            self.held.stage.backward_weight(alive)

    @contextmanager
    def _lent(self, which: Alive) -> Iterator[Alive]:
        """A microbatch's name in the stretch, with its weights in place."""
        pipe, microbatch = which[0], self.first + which[1]
        with self.held.using(microbatch):
            yield pipe, microbatch
