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
    piece = local.tensors[name].detach().cpu()
    part = team.part(name)
    first_holder = local.holders[name][0] - team.member
    if part is None:
        return piece
    if team.member:
        await transport.send(first_holder, ("piece", name), piece)
        return None
    whole = piece.new_empty(part.whole)
    put(whole, part.indices, piece)
    for member in range(1, team.members):
        if team.counts(name, member):
            peer_part = team.part(name, member)
            assert peer_part is not None
            message = await transport.receive(first_holder + member, ("piece", name))
            put(whole, peer_part.indices, message.blocks[0].torch())
    return whole
