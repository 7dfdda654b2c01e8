"""The versions of one bucket's weights: the newest, which is updated, and older ones for microbatches under way.

The backward of a microbatch uses the same values as its forward, bit for bit, however often the weights were updated in
between. Values are copied only if an update would overwrite a version that is still in use. `NewestOnly` keeps one.
"""

from collections import Counter
from collections.abc import Mapping

import torch

from pipelined.training.job.module_tensors import copy_hooks
from pipelined.training.optimizer import update
from pipelined.training.sums.bucket import Bucket, view_gradients

Leaves = Mapping[str, torch.Tensor]
"""Parameters' values by name, as leaves of the autograd graph; their gradients accumulate in the bucket's gradient."""


class Versions:
    """The weights of one bucket on one rank.

    Args:
        bucket: the bucket; its parameters always have the newest values.
        optimizer: an optimizer of these parameters only.
        history: versions before the newest that are kept even while no microbatch uses them.

    Attributes:
        newest: updates made since `start_segment`.
        oldest: the oldest version: 0, or a negative number if versions from before `start_segment` are known.
    """

    def __init__(self, bucket: Bucket, optimizer: torch.optim.Optimizer, history: int):
        self.bucket, self.newest, self.oldest = bucket, 0, 0
        self._optimizer, self._history = optimizer, history
        self._sums = {name: p.grad for name, p in bucket.parameters.items()}
        self._leaves: dict[int, Leaves] = {}
        self._users: Counter[int] = Counter()

    def start_segment(self) -> None:
        """Restart the count at 0; no microbatch may be under way. Earlier versions get negative numbers."""
        self._leaves = {
            version - self.newest: leaves for version, leaves in self._leaves.items() if version < self.newest
        }
        self.newest = 0
        self.oldest = min(self._leaves, default=0)

    def restore(self, older: Mapping[int, Leaves]) -> None:
        """Restore the result of `older` from another run, after the newest values were restored."""
        self._leaves = {version: self._as_leaves(values) for version, values in older.items()}
        self.newest = 0
        self.oldest = min(self._leaves, default=0)

    def older(self) -> dict[int, Leaves]:
        """The versions kept before the newest, by their distance to it in updates: -1, -2, …"""
        return {n - self.newest: leaves for n, leaves in self._leaves.items() if n < self.newest}

    def acquire(self, version: int) -> Leaves:
        """The values of a version, which do not change until `release`."""
        self._users[version] += 1
        return self._leaves_of(version)

    def release(self, version: int) -> None:
        """Release a version that `acquire` returned."""
        self._users[version] -= 1
        self._free_unused()

    def collect(self, at_once: bool = False) -> torch.Tensor:
        """Return a copy of the accumulated gradient, and reset it to zero.

        Args:
            at_once: whether the update follows before the next backward: then the gradient itself is returned, and the
                update resets it, so that none is held twice.
        """
        if at_once:
            return self.bucket.gradient
        gradient = self.bucket.gradient.clone()
        self.bucket.gradient.zero_()
        return gradient

    def update(self, gradient: torch.Tensor, rate: float | None) -> None:
        """Make the next version from a gradient, which is flat and in the bucket's order."""
        if self._history or self._users[self.newest]:
            self._leaves_of(self.newest)
            for parameter in self.bucket.parameters.values():
                parameter.data = parameter.data.clone()
        view_gradients(self.bucket.parameters, gradient)
        update(self._optimizer, rate, 1.0)
        if gradient is self.bucket.gradient:
            gradient.zero_()
        view_gradients(self.bucket.parameters, self.bucket.gradient)
        self.newest += 1
        self._free_unused()

    def _leaves_of(self, version: int) -> Leaves:
        if version not in self._leaves and version == self.newest:
            self._leaves[version] = self._as_leaves({n: p.data for n, p in self.bucket.parameters.items()})
        return self._leaves[version]

    def _as_leaves(self, values: Leaves) -> Leaves:
        """New leaves over the same memory: autograd does not count changes of the parameters as changes of these."""
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        for name, leaf in leaves.items():
            leaf.grad = self._sums[name]
            copy_hooks(self.bucket.parameters[name], leaf)
        return leaves

    def _free_unused(self) -> None:
        """Free versions that no microbatch uses and that need not be kept."""
        for version in list(self._leaves):
            if version < self.newest - self._history and not self._users[version]:
                del self._leaves[version]


class NewestOnly(Versions):
    """The newest weights alone: every computation uses the parameters as they are then, so nothing is copied.

    The stage must recompute: an update would change what a forward kept for its backward.
    """

    def acquire(self, version: int) -> Leaves:
        """The parameters themselves; updates change them."""
        return self.bucket.parameters

    def release(self, version: int) -> None:
        """Nothing is kept for a microbatch."""
