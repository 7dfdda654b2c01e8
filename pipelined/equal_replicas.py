"""Replicas must begin equal: all holders of a tensor compare digests of it before the first step.

Every holder makes the same update from the same sum, so what begins equal stays equal, and what does not never shows.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence

import torch

from pipelined.check_model import ModelError
from pipelined.exchange import gather
from pipelined.replica import Replica
from pipelined.runtime import together
from transports import Transport


async def require_equal_replicas(transport: Transport, replica: Replica) -> None:
    """Refuse tensors that are not the same on all ranks that hold them; all ranks of a job call this.

    Raises:
        AgreedError: on every rank, naming a parameter or buffer and two ranks.
    Cost: one hash of every byte that has several holders, and one message of a few bytes a tensor from each rank.
    """
    shared = {name: tensor for name, tensor in replica.tensors.items() if len(replica.holders[name]) > 1}
    mine = await asyncio.to_thread(lambda: {name: _digest(tensor) for name, tensor in shared.items()})
    told = await gather(transport, "initial values", mine)
    await together(transport, "equal replicas", asyncio.to_thread(_compare, told))


def _compare(told: Sequence[Mapping[str, bytes]]) -> None:
    first: dict[str, int] = {}
    for rank, digests in enumerate(told):
        for name, digest in digests.items():
            holder = first.setdefault(name, rank)
            if digest != told[holder][name]:
                fact = f"ranks {holder} and {rank} hold different values of {name} before the first step"
                remedy = "let the model's `build` set every parameter and buffer from the seed and the name alone"
                raise ModelError(f"{fact}; {remedy}, as `pipelined.noise.keyed_generator` does")


def _digest(tensor: torch.Tensor) -> bytes:
    memory = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(memory, digest_size=16).digest()
