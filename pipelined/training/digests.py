"""Digests of tensors: do replicas begin equal, do ranks have equal data, has another run the same parameters.

All holders of a tensor compare digests of it before the first step. Every holder makes the same update from the same
sum, so equal replicas stay equal. Unequal ones raise no error later.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch

from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.agree import agree
from pipelined.training.exchange.parcels import Tree, tensors_of
from pipelined.training.job.check_model import ModelError
from pipelined.training.stages.parameters import LocalParameters
from pipelined.training.stages.whole_tensors import whole_of
from transports import Transport

Digests = Mapping[str, bytes]


async def require_equal_replicas(transport: Transport, local: LocalParameters) -> None:
    """Refuse tensors that differ between the ranks that hold them; all ranks of a job call this.

    Raises:
        AgreedError: on every rank, naming a parameter or buffer and two ranks.
    Cost: one hash of every byte that has several holders, and one digest from each rank for each set of ranks that
        share tensors; only if these differ, one digest per tensor.
    """
    own_digests = await asyncio.to_thread(_digests, local)
    rank_sets = {local.team.entry(name): ",".join(map(str, ranks)) for name, ranks in local.holders.items()}
    gathered = await gather_objects(transport, "initial values", _join_digests(own_digests, rank_sets))
    unequal = await broadcast_object(transport, "unequal initial values", [name for name, *_ in _compare(gathered)])
    if unequal:
        differing = {name: digest for name, digest in own_digests.items() if rank_sets[name] in unequal}
        by_rank = await gather_objects(transport, "each initial value", differing)
        await agree(transport, "equal replicas", asyncio.to_thread(_refuse, by_rank))


async def require_equal_batches(transport: Transport, digests: Digests, step: int) -> None:
    """Refuse batches that differ between ranks: inputs would come from one rank and targets from another.

    Args:
        digests: of this rank's batch, by "inputs" and "targets"; empty: ranks read microbatches of their own.
    Raises:
        AgreedError: on every rank, naming two ranks.
    Cost: one small message from each rank.
    """
    gathered = await gather_objects(transport, "batches", digests)
    await agree(transport, "equal batches", asyncio.to_thread(_refuse_batches, gathered, step))


async def model_digest(transport: Transport, local: LocalParameters) -> str:
    """One digest of every parameter of the model, on rank 0; "" elsewhere. All ranks call this between two steps.

    It depends on names, dtypes, shapes and values alone: equal in any arrangement that computes the same bits.

    Cost: one hash of every byte, outside the event loop; 16 bytes and a name of each parameter to rank 0. The first
        member of a team has each of its parameters whole once, one after another.
    """
    digests: dict[str, bytes] = {}
    for name in local.state_names:
        if name in local.parameters and (tensor := await whole_of(transport, local, name)) is not None:
            digests[name] = await asyncio.to_thread(_described_and_hashed, tensor)
    gathered = await gather_objects(transport, "digests", digests)
    if transport.rank:
        return ""
    by_name = {name: digest for rank_digests in gathered for name, digest in rank_digests.items()}
    return _digest_of_all((name, by_name[name]) for name in local.names)


def parameters_digest(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The same digest of parameters that are all here.

    Args:
        parameters: names and values, in the model's order.
    Cost: one hash of every byte.
    """
    return _digest_of_all((name, _described_and_hashed(tensor)) for name, tensor in parameters)


def _digest_of_all(digests: Iterable[tuple[str, bytes]]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name, digest in digests:
        hashed.update(name.encode() + b"\0" + digest)
    return hashed.hexdigest()


def _described_and_hashed(tensor: torch.Tensor) -> bytes:
    return f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + _digest(tensor)


def _digests(local: LocalParameters) -> Digests:
    shared = {name: tensor for name, tensor in local.tensors.items() if len(local.holders[name]) > 1}
    return {local.team.entry(name): _digest(tensor) for name, tensor in shared.items()}


def _join_digests(digests: Digests, rank_sets: Mapping[str, str]) -> Digests:
    """For each set of ranks, one digest of all tensors that they share, in the order of names."""
    joined = {ranks: hashlib.blake2b(digest_size=16) for ranks in rank_sets.values()}
    for name in sorted(digests):
        joined[rank_sets[name]].update(name.encode() + b"\0" + digests[name])
    return {ranks: hashed.digest() for ranks, hashed in joined.items()}


def _compare(gathered: Sequence[Digests]) -> list[tuple[str, int, int]]:
    """The tensors that differ from those of their first holder, with both ranks, in the order of ranks."""
    first_holders: dict[str, int] = {}
    return [
        (name, holder, rank)
        for rank, digests in enumerate(gathered)
        for name, digest in digests.items()
        if digest != gathered[holder := first_holders.setdefault(name, rank)][name]
    ]


def _refuse(gathered: Sequence[Digests]) -> None:
    for name, holder, rank in _compare(gathered):
        fact = f"ranks {holder} and {rank} hold different values of {name} before the first step"
        remedy = "let every rank build the same values, for example after torch.manual_seed(0)"
        raise ModelError(f"{fact}; {remedy}; a `build` of your own sets them from the seed and the name alone")


def _refuse_batches(gathered: Sequence[Digests], step: int) -> None:
    for part, first, rank in _compare(gathered):
        fact = f"ranks {first} and {rank} have different {part} in the batch of step {step}"
        remedy = "give every rank the same batches in the same order"
        example = "a DataLoader that shuffles needs generator=torch.Generator().manual_seed(0)"
        raise ModelError(f"{fact}; {remedy} ({example})")


def tree_digest(tree: Tree) -> bytes:
    """A digest of every tensor of a tree: dtypes, shapes and values."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors_of(tree):
        hashed.update(_described_and_hashed(tensor))
    return hashed.digest()


def _digest(tensor: torch.Tensor) -> bytes:
    memory = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(memory, digest_size=16).digest()
