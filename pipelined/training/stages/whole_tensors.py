"""Whole tensors from the pieces that the members of a team hold, one tensor at a time."""

import torch

from pipelined.sharding.shards import put
from pipelined.training.stages.parameters import LocalParameters
from transports import Transport


async def whole_of(transport: Transport, local: LocalParameters, name: str) -> torch.Tensor | None:
    """A tensor on the host of its first holder, from the pieces of that rank's team; None on other ranks.

    Every rank calls this for each of its `state_names`, in the order of the model's names.

    Cost: one message from each member that counts a piece; the first holder has the tensor once beside what it holds.
    """
    team = local.team
    own = local.tensors[name].detach().cpu()
    part = team.part(name)
    first = local.holders[name][0] - team.member
    if part is None:
        return own
    if team.member:
        await transport.send(first, ("piece", name), own)
        return None
    whole = own.new_empty(part.whole)
    put(whole, part.indices, own)
    for member in range(1, team.members):
        if team.counts(name, member):
            other = team.part(name, member)
            assert other is not None
            put(whole, other.indices, (await transport.receive(first + member, ("piece", name))).blocks[0].torch())
    return whole
