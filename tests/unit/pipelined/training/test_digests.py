"""Replicas are compared before the first step: one digest over all that ranks share, details only where it differs."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from pipelined.errors import AgreedError
from pipelined.training.digests import require_equal_replicas
from pipelined.training.teams.pieces import TeamShare
from transports.local import world

TENSORS = 200


def compared(*replicas):
    """What each rank's comparison ends with, and the bytes that all ranks sent."""
    ends = world(len(replicas))

    async def main():
        ways = map(require_equal_replicas, ends, replicas)
        return await asyncio.wait_for(asyncio.gather(*ways, return_exceptions=True), 20)

    return asyncio.run(main()), sum(end.traffic.bytes_sent for end in ends)


def replica(holders, values):
    """What a rank holds: by name the ranks that hold it too, and what it says there."""
    tensors = {name: torch.tensor([float(value)]) for name, value in values.items()}
    return SimpleNamespace(tensors=tensors, holders={name: holders[name] for name in values}, team=TeamShare())


def stage(number, ranks):
    return {f"stage {number}, tensor {n}": ranks for n in range(TENSORS)}


def test_equal_replicas_send_one_digest_for_each_set_of_holders_however_many_tensors_they_have():
    holders = {**stage(0, (0, 2)), **stage(1, (1, 3)), "tied": (0, 1, 2, 3), "of one": (0,)}
    values_by_rank = [{name: 1.0 for name, ranks in holders.items() if rank in ranks} for rank in range(4)]
    ended, nbytes = compared(*(replica(holders, values) for values in values_by_rank))
    assert ended == [None] * 4
    assert nbytes < 600, "some 16 bytes a tensor would be 13,000"


@pytest.mark.parametrize("odd", range(4))
def test_the_tensor_that_differs_is_named_with_both_ranks_on_every_rank(odd):
    holders = {**stage(0, (0, 2)), **stage(1, (1, 3))}
    name = f"stage {odd % 2}, tensor {TENSORS // 2}"
    values_by_rank = [{name: 1.0 for name, ranks in holders.items() if rank in ranks} for rank in range(4)]
    values_by_rank[odd][name] = 2.0
    ended, _ = compared(*(replica(holders, values) for values in values_by_rank))
    assert {type(error) for error in ended} == {AgreedError} and len({str(error) for error in ended}) == 1
    assert f"ranks {odd % 2} and {odd % 2 + 2} hold different values of {name} before the first" in str(ended[0])


def test_values_that_are_swapped_between_two_tensors_differ():
    ended, _ = compared(
        *(replica({"a": (0, 1), "b": (0, 1)}, values) for values in ({"a": 1, "b": 2}, {"a": 2, "b": 1}))
    )
    assert all("different values of a before" in str(error) for error in ended)
