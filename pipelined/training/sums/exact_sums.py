"""Exact sums of gradients: the same bits in any arrangement, because nothing is rounded where they are added.

After each backward the gradient of one microbatch is rounded to the grid of its parameter
(`programs.updates.exact_grid`) and added to a float64 buffer, which the ranks then sum in any order. A tied parameter
has one summand for each use of it: where two uses meet in one stage, autograd would add them in float32, so each is
taken before.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from collectives import Group, all_reduce
from pipelined.actors.device.executor import Executor
from pipelined.errors import UsageError
from pipelined.programs.updates.exact_grid import Grid
from pipelined.training.graph.split_backward import nodes_below
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.grids import GRID, Grids

MAX_USES = 256
"""The uses of one tied parameter in a model, for each of which the grid has room."""


class ExactSums(Accumulation):
    """The exact sums of one rank's gradients.

    Where a summand did not fit its grid, all ranks compute the step again. Every rank decides from the same maxima, so
    all decide alike. The second pass always fits: its grids follow from the summands of the first, and it has the same.
    The first step of a job takes two passes, as it begins without grids.

    Args:
        world: all ranks.
        executor: rounds the sums after a step.
        buckets: the buckets of the rank; each gets its buffer here.
        tied: the names of parameters that several layers may use.
        microbatches: the microbatches of a step over all groups.
        names: every parameter of the model, in the same order on all ranks.
    Attributes:
        grids: of each parameter, once its largest summand is known.
    Cost: 8 bytes an element beside the gradient's 4, and 2 to 3 ns an element and microbatch.
    """

    def __init__(
        self,
        world: Group,
        executor: Executor,
        *,
        buckets: Sequence[Bucket],
        tied: Iterable[str],
        microbatches: int,
        names: Sequence[str],
    ):
        self._world, self._executor = world, executor
        self._buckets, self._names = buckets, names
        self._bucket_starts: dict[str, tuple[Bucket, int]] = {}
        for bucket in buckets:
            bucket.exact = torch.zeros_like(bucket.gradient, dtype=torch.float64)
            start = 0
            for name, parameter in bucket.parameters.items():
                self._bucket_starts[name] = bucket, start
                start += parameter.numel()
        tied_names = frozenset(tied)
        self._tied: dict[object, str] = {
            bucket.parameters[name]: name for name, (bucket, _) in self._bucket_starts.items() if name in tied_names
        }
        uses = {name: MAX_USES if name in tied_names else 1 for name in self._bucket_starts}
        self.grids = Grids({name: microbatches * count for name, count in uses.items()})
        self._largest = dict.fromkeys(self._bucket_starts, 0.0)
        self._adds_uses = True

    @property
    def agreed_numbers(self) -> int:
        return len(self.largest())

    def require(self, stage: int, running_statistics: bool) -> None:
        """See `Accumulation`."""
        if running_statistics:
            fact = f"a norm of stage {stage} has running statistics, which are averaged in floats"
            raise UsageError(f"{fact}; exact sums need a norm without them, such as LayerNorm or GroupNorm")

    async def run(self, compute: Callable[[], Awaitable[None]]) -> None:
        """See `Accumulation`; then the sums are rounded to the gradients, each once."""
        await compute()
        if not await self._agree_on_grids():
            for bucket in self._buckets:
                bucket.clear()
            await compute()
            await self._agree_on_grids()
        await self._executor.run("finish", self._finish)

    async def _agree_on_grids(self) -> bool:
        """Set the grids by the largest summands of all ranks in this pass; whether all summands did fit."""
        largest = self.largest()
        await all_reduce(self._world, largest, "max")
        self.adopt(largest)
        return not largest[-1]

    def _finish(self) -> None:
        for bucket in self._buckets:
            assert bucket.exact is not None
            bucket.gradient.copy_(bucket.exact)

    def collect(self, stage: int) -> None:
        """Add the gradients of one microbatch, which lie in the buckets of a stage, and clear them."""
        for bucket in self._buckets:
            if stage in bucket.stages:
                for name, parameter in bucket.parameters.items():
                    assert parameter.grad is not None  # it is a view of the bucket's gradient
                    self._add(name, parameter.grad)
                bucket.gradient.zero_()

    def begin_backward(self, outputs: Iterable[torch.Tensor]) -> None:
        """Let each use of a tied parameter in this graph be added on its own.

        Raises:
            UsageError: more uses than the grid has room for.
        """
        roots = [output.grad_fn for output in outputs if output.grad_fn is not None]
        if not self._tied or not roots:
            return
        uses: dict[str, int] = {}
        for node in nodes_below(roots):
            for index, (used, _) in enumerate(node.next_functions):
                name = self._tied.get(getattr(used, "variable", None))
                if name is not None:
                    uses[name] = uses.get(name, 0) + 1
                    node.register_hook(partial(self._on_use_gradient, name, index))
        for name, count in uses.items():
            if count > MAX_USES:
                raise UsageError(f"exact sums: {name} is used {count} times and may be {MAX_USES} times; untie it")

    @contextmanager
    def without_weights(self) -> Iterator[None]:
        """Inside the `with` block no use is added: an input half may compute gradients of weights and drop them."""
        self._adds_uses = False
        try:
            yield
        finally:
            self._adds_uses = True

    def _on_use_gradient(self, name: str, use_index: int, gradients: Sequence[torch.Tensor | None], _: object) -> Any:
        """Add the gradient of one use; autograd gets none for it."""
        gradient = gradients[use_index]
        if gradient is None or not self._adds_uses:
            return None
        self._add(name, gradient)
        return tuple(None if index == use_index else use_gradient for index, use_gradient in enumerate(gradients))

    def _add(self, name: str, gradient: torch.Tensor) -> None:
        bucket, start = self._bucket_starts[name]
        assert bucket.exact is not None
        largest = self.grids.add(name, gradient, bucket.exact[start : start + gradient.numel()])
        if math.isfinite(largest):
            self._largest[name] = max(self._largest[name], largest)
        else:
            self._largest[name] = bucket.exact[start] = largest  # the norm is not finite then, and the step is refused

    def largest(self) -> np.ndarray:
        """The largest summand of each parameter in this step, and last whether one did not fit, of this rank alone."""
        magnitudes = [self._largest.get(name, 0.0) for name in self._names]
        finite = {name: magnitude for name, magnitude in self._largest.items() if math.isfinite(magnitude)}
        fits = all(self.grids.holds(name, magnitude) for name, magnitude in finite.items())
        return np.array([*magnitudes, not fits], np.float64)

    def adopt(self, largest: np.ndarray) -> None:
        """Set the grids for what comes next, by the largest summands of all ranks; see `Grids.adopt`."""
        self.grids.adopt(dict(zip(self._names, map(float, largest), strict=False)))
        self._largest = dict.fromkeys(self._bucket_starts, 0.0)

    @property
    def square_parts(self) -> int:
        return 2

    def squares(self, bucket: Bucket) -> dict[str, tuple[float, float]]:
        """See `Accumulation`. Both parts add exactly, so the norm is the same where holders divide a parameter."""
        return {
            name: self.grids.squares(name, bucket.gradient[low:high], bucket.parameters[name].numel())
            for name, (low, high) in bucket.spans.items()
        }

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """The fields of a checkpoint: the exponent of the parameter's grid, if it has one."""
        return {GRID: torch.tensor(self.grids[name].exponent)} if name in self.grids else {}

    def restore(self, name: str, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on with the grid of `state_of`. Without one the next step finds it."""
        self.grids.pop(name, None)
        if GRID in saved and name in self._bucket_starts:
            self.grids[name] = Grid(int(saved[GRID]))
