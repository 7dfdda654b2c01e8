"""The parameters with which a rank begins, from tensors by name instead of random values."""

import asyncio
from collections.abc import Callable, Iterable

import torch

from pipelined.actors.agree import agree
from pipelined.training.rank_trainer import RankTrainer


async def load_initial(
    trainer: RankTrainer, tensors_of: Callable[[Iterable[str]], Iterable[tuple[str, torch.Tensor]]]
) -> None:
    """Load the parameters that this rank holds, or of a team this member's pieces; all ranks call this together.

    Args:
        tensors_of: gives the tensors of some names, one after another.
    Raises:
        AgreedError: on every rank: one of them cannot read its tensors. No parameter has changed.
    """
    parameters, team = trainer.local.parameters, trainer.local.team

    def read() -> dict[str, torch.Tensor]:
        return dict(map(lambda pair: (pair[0], team.cut(*pair)), tensors_of(parameters)))  # keeps no whole tensor

    values = await agree(trainer.context.actor.transport, "init", asyncio.to_thread(read))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
