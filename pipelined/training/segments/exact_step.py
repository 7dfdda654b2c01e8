"""One step with a flush and exact sums: its passes run again where a summand did not fit its grid."""

import torch

from collectives import Group, all_reduce
from pipelined.programs.prepare import Prepared
from pipelined.training.parameters import LocalParameters
from pipelined.training.replay import Order
from pipelined.training.segments.flushed_step import FlushedStep
from pipelined.training.sums.exact_sums import ExactSums
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.worker import RankContext


class ExactStep(FlushedStep):
    """See `FlushedStep`.

    All ranks decide by the largest summands of all of them, so alike. The second pass always fits: its grids follow
    from the summands of the first, and it has the same. The first step of a job takes two passes, as it begins without
    grids.

    Args:
        exact: the exact sums of the rank.
        world: all ranks.
    """

    def __init__(
        self,
        context: RankContext,
        local: LocalParameters,
        sums: GradientSums,
        optimizer: torch.optim.Optimizer,
        *,
        step: int,
        prepared: Prepared,
        order: Order,
        exact: ExactSums,
        world: Group,
    ):
        super().__init__(context, local, sums, optimizer, step=step, prepared=prepared, order=order)
        self._exact, self._world = exact, world

    async def run(self) -> None:
        await self._pass()
        if not await self._fits():
            self._local.clear_gradients()
            await self._pass()
            await self._fits()
        await self._context.executor.run("finish", self._exact.finish)
        self._drained.set()

    async def _fits(self) -> bool:
        """Agree on the largest summands of a pass, and set the grids by them; whether all summands did fit."""
        largest = self._exact.largest()
        await all_reduce(self._world, largest, "max")
        self._exact.adopt(largest)
        return not largest[-1]
