"""The output of `train` at the end: the average, which it gets from the nodes, and a sample. Imports torch."""

from collections.abc import Mapping, Sequence

import torch

from apps.ravnest.families.registry import TrainingData, find_family
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.flags.groups import AverageFlags
from apps.ravnest.task_training import training_of
from pipelined.aio.tasks import beside
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import DirectoryRefusal
from pipelined.membership.view import NoLongerValid
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.averaging.rounds import state_by_layer
from pipelined.ravnest.records.view import RavnestView
from pipelined.ravnest.stage.parameter_exchange import ParameterExchange
from transports import Block

Layers = Sequence[Mapping[str, torch.Tensor]]
RETRY_S = 0.2
"""Seconds between two requests for what a node does not give yet: it joins again after its last step."""


async def fetch_average(local: LocalMember, task: RavnestTask, data: TrainingData) -> Mapping[str, torch.Tensor]:
    """Get the average from the nodes of clusters that have trained their last step; by name.

    Raises:
        UsageError: no node gives a part of it any more. DirectoryRefusal: as `ClusterFormer.run`.
    """
    training = training_of(task, data)
    view = RavnestView(local.directory, local.clock)
    layers = state_by_layer(training.model, training.numerics.dtype)
    blocks = await beside(
        _fetch_until_whole(local, view, layers, task.settings.lease), view.follow((DirectoryRefusal,))
    )
    return {name: block.torch() for name, block in blocks.items()}


async def write_average(
    local: LocalMember, task: RavnestTask, data: TrainingData, flags: AverageFlags, say: Say
) -> None:
    """Get the average, and write what is asked for. Raises: as `fetch_average`."""
    tensors = await fetch_average(local, task, data)
    await find_family(task.settings.preset).write(tensors, task, data, flags, say)


async def _fetch_until_whole(
    local: LocalMember, view: RavnestView, layers: Layers, lease_s: float
) -> Mapping[str, Block]:
    """All values of the average; a node that gives nothing yet is asked again for at most two leases."""
    exchange = ParameterExchange(local, view, None)
    blocks = dict[str, Block]()
    progress_at = local.clock.now()
    generation = await view.wait_for(lambda: view.generation)
    while True:
        count_before = len(blocks)
        try:
            await exchange.fetch_average(generation, layers, blocks)
            return blocks
        except NoLongerValid as error:
            progress_at = local.clock.now() if len(blocks) > count_before else progress_at
            if local.clock.now() - progress_at > 2 * lease_s:
                fact = f"the nodes do not give the whole average ({error})"
                raise UsageError(f"{fact}; start training with --checkpoint, and export that") from error
        await local.clock.sleep(RETRY_S)
