"""Which nodes back up which places: the least reliable places first, each by the smallest node that can hold it.

Source: Ravnest, section 3.5.2 (a new peer is the backup of the most unreliable node of a cluster).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pipelined.errors import UsageError
from pipelined.ravnest.planning.plan import PoolRequest, RavnestPlan, make_plan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage import StageSizes

STEPS_APART = 2
"""Steps by which the nodes of a place may be apart; the inputs of these wait at the slower one."""


class HeldPlace(NamedTuple):
    """A place: its node, and the bytes that this one and the backup hold when there are two."""

    node: PoolNode
    bytes: int
    backup_bytes: int


def assign_backups(places: Sequence[HeldPlace], spare: Sequence[PoolNode]) -> dict[int, PoolNode]:
    """The backup of each place that gets one, by its index.

    Args:
        places: of equally reliable ones the first is backed up first; a node of unknown reliability counts as reliable.
        spare: nodes without a place; of two with the same RAM the faster one is taken.
    """
    left, found = [*spare], dict[int, PoolNode]()
    sure = [1.0 if place.node.reliability is None else place.node.reliability for place in places]
    for index in sorted(range(len(places)), key=lambda index: sure[index]):
        large = [node for node in left if node.ram >= places[index].backup_bytes]
        if large and places[index].node.ram >= places[index].bytes:
            found[index] = min(large, key=lambda node: (node.ram, -(node.flops or 0.0)))
            left.remove(found[index])
    return found


def plan_with_backups(request: PoolRequest) -> RavnestPlan:
    """The plan of the first nodes, with the last ones as backups.

    Raises:
        UsageError: as `make_plan`, or there are as many backups as nodes.
    """
    if not request.backups:
        return make_plan(request)
    first = len(request.pool) - request.backups
    if first < 1:
        fact = f"no node is left to train (nodes: {len(request.pool)}, backups: {request.backups})"
        raise UsageError(f"{fact}; take fewer --backups, or add nodes")
    if not request.layers:
        raise UsageError("--bytes has no layers to back up; give --preset instead of --bytes, or leave --backups out")
    plan, spare = make_plan(replace(request, pool=request.pool[:first], backups=0)), request.pool[first:]
    stages = [stage for cluster in plan.clusters for stage in cluster.stages]
    sizes = StageSizes(request.layers, request.rules)
    held = [sizes.backed(stage.first, stage.end, stage.bytes) for stage in stages]
    found = assign_backups([HeldPlace(each.node, *2 * [most]) for each, most in zip(stages, held, strict=True)], spare)
    backed = iter(
        [
            replace(stage, backup=found[index], bytes=held[index]) if index in found else stage
            for index, stage in enumerate(stages)
        ]
    )
    clusters = [replace(each, stages=tuple(next(backed) for _ in each.stages)) for each in plan.clusters]
    waiting = (*plan.waiting, *(node for node in spare if node not in found.values()))
    return replace(plan, clusters=tuple(clusters), waiting=waiting)


def plan_of_those_left(request: PoolRequest, nodes: int) -> RavnestPlan:
    """The plan of a pool of perhaps fewer than `nodes`: with fewer clusters and backups than requested if need be.

    Raises:
        UsageError: as `plan_with_backups`.
    """
    pool = len(request.pool)
    if request.backups:
        request = replace(request, backups=max(0, pool - (nodes - request.backups)))
    if request.clusters is None:
        return plan_with_backups(request)
    for clusters in range(min(request.clusters, pool), 1, -1):
        with suppress(UsageError):
            return plan_with_backups(replace(request, clusters=clusters))
    return plan_with_backups(replace(request, clusters=1))
