"""The versions of one bucket's weights: the newest, which is updated, and older ones for microbatches under way.

The rule: whoever goes forward with a version goes back with the same values, bit for bit, however often the weights
were updated meanwhile. A copy is made only where an update would overwrite what somebody still needs. This file knows
parameters and numbers of versions; it must not know stages, microbatches or when an update is due.
"""

from collections import Counter
from collections.abc import Mapping

import torch

from pipelined.training.optimizer import update
from pipelined.training.parameters import Bucket

Leaves = Mapping[str, torch.Tensor]
"""Parameters' values by name, as leaves of the autograd graph; their gradients add up in the bucket's."""


class Versions:
    """The weights of one bucket on one rank.

    Args:
        bucket: its parameters always have the newest values.
        optimizer: of these parameters alone.
        kept: how many versions before the newest are kept though nobody uses them yet.

    Attributes:
        newest: updates made since `begin`.
        oldest: the first version there is: 0, or less where versions from before `begin` are known.
    """

    def __init__(self, bucket: Bucket, optimizer: torch.optim.Optimizer, kept: int):
        self.bucket, self.newest, self.oldest = bucket, 0, 0
        self._optimizer, self._kept = optimizer, kept
        self._sums = {name: p.grad for name, p in bucket.parameters.items()}
        self._leaves: dict[int, Leaves] = {}
        self._users: Counter[int] = Counter()

    def begin(self) -> None:
        """Count from 0 again, nobody being under way; versions from before get numbers below 0."""
        self._leaves = {number - self.newest: leaves for number, leaves in self._leaves.items() if number < self.newest}
        self.newest, self.oldest = 0, min(self._leaves, default=0)

    def restore(self, older: Mapping[int, Leaves]) -> None:
        """Put back what `older` gave of another run, after the newest values have been put back."""
        self._leaves = {number: self._as_leaves(values) for number, values in older.items()}
        self.newest, self.oldest = 0, min(self._leaves, default=0)

    def older(self) -> dict[int, Leaves]:
        """The versions kept before the newest, by how many updates they are behind it: -1, -2, …"""
        return {n - self.newest: leaves for n, leaves in self._leaves.items() if n < self.newest}

    def lend(self, version: int) -> Leaves:
        """The values of a version, which will not change until they are given back.

        What is older than the oldest is the oldest.
        """
        version = max(version, self.oldest)
        self._users[version] += 1
        return self._of(version)

    def give_back(self, version: int) -> None:
        """Be done with what `lend` gave."""
        self._users[max(version, self.oldest)] -= 1
        self._forget()

    def collect(self) -> torch.Tensor:
        """Take the gradient that has been added up, and begin with zeros again."""
        gradient = self.bucket.gradient.clone()
        self.bucket.gradient.zero_()
        return gradient

    def update(self, gradient: torch.Tensor, rate: float) -> None:
        """Make the next version by a gradient, flat and in the bucket's order."""
        if self._kept or self._users[self.newest]:
            self._of(self.newest)
            for parameter in self.bucket.parameters.values():
                parameter.data = parameter.data.clone()
        start = 0
        for parameter in self.bucket.parameters.values():
            parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        update(self._optimizer, rate, 1.0)
        self.newest += 1
        self._forget()

    def _of(self, version: int) -> Leaves:
        if version not in self._leaves and version == self.newest:
            self._leaves[version] = self._as_leaves({n: p.data for n, p in self.bucket.parameters.items()})
        return self._leaves[version]

    def _as_leaves(self, values: Leaves) -> Leaves:
        """The same memory under leaves of their own: what is done to the parameters is not counted as done to them."""
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        for name, leaf in leaves.items():
            leaf.grad = self._sums[name]
        return leaves

    def _forget(self) -> None:
        """Let go of what nobody uses or will."""
        for version in list(self._leaves):
            if version < self.newest - self._kept and not self._users[version]:
                del self._leaves[version]
