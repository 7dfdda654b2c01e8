"""What a node saves: the average of its layers after a round, and its own moments, by parameter name.

The nodes of the first cluster save, because a round has the same average for all. One cluster alone has no rounds, and
saves at the end. Imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from pipelined.actors.executor import Executor
from pipelined.aio.nursery import Nursery
from pipelined.state.saver import Saver
from pipelined.state.store import CheckpointStore
from pipelined.state.versions import SavedStage
from pipelined.training.optimizer.state import OptimizerState


@dataclass(frozen=True)
class Saving:
    """Where a node saves, and how often.

    Args:
        every: rounds from one save to the next; the last round is always saved.
        run: unique name of the run, so that stages of two runs are not taken for one model.
    """

    store: CheckpointStore
    every: int
    run: str


class StageSaver:
    """Saves one stage of one cluster.

    Args:
        tasks: the parent of writes; its end waits for them.
        at: the stage; its step is set for each save.
        steps: by round, from the first, the steps of the training completed before it.
        parameters: of the stage, by name.
    """

    def __init__(
        self,
        tasks: Nursery,
        saving: Saving,
        at: SavedStage,
        *,
        steps: Sequence[int],
        parameters: Mapping[str, nn.Parameter],
        optimizer: Optimizer,
        executor: Executor,
    ):
        self._tasks, self._saving, self._at, self._steps = tasks, saving, at, steps
        self._parameters, self._optimizer, self._executor = parameters, optimizer, executor
        self._saver = Saver(saving.store, 1, True, lambda: None)

    async def save(self, number: int, average: torch.Tensor) -> None:
        """Save the average of a round, if it is due; returns when it is copied. A save that fails is an event.

        Args:
            number: of the round, from 1.
            average: of the parameters, flat, in their order.
        """
        if number % self._saving.every == 0 or number == len(self._steps):
            at = self._at._replace(step=self._steps[number - 1])
            await self._saver.save(self._tasks, at, partial(self._copied, average))

    async def _copied(self, average: torch.Tensor) -> Mapping[str, torch.Tensor]:
        state, _, _ = await self._executor.run("snapshot", lambda: self._copy(average))
        return state

    @torch.no_grad()
    def _copy(self, average: torch.Tensor) -> Mapping[str, torch.Tensor]:
        state, sizes = dict[str, torch.Tensor](), [parameter.numel() for parameter in self._parameters.values()]
        for (name, parameter), piece in zip(self._parameters.items(), average.split(sizes), strict=True):
            fields = {**OptimizerState.of(self._optimizer).fields(parameter), "value": piece.view_as(parameter)}
            state |= {f"{name}/{field}": tensor.detach().cpu().clone() for field, tensor in fields.items()}
        return state
