"""Which nodes back up which places: the least reliable places first, each by the smallest node that can hold it.

Source: Ravnest, section 3.5.2 (a new peer is the backup of the most unreliable node of a cluster).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pipelined.errors import UsageError
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.pace import Pace, with_fewer
from pipelined.ravnest.planning.plan import PlannedCluster, PlannedStage, PoolRequest, RavnestPlan, make_plan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import StageSizes

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
    remaining = [*spare]
    backups = dict[int, PoolNode]()
    for index in sorted(range(len(places)), key=lambda index: known_reliability(places[index].node)):
        large = [node for node in remaining if node.ram >= places[index].backup_bytes]
        if large and places[index].node.ram >= places[index].bytes:
            backups[index] = min(large, key=lambda node: (node.ram, -(node.flops or 0.0)))
            remaining.remove(backups[index])
    return backups


def known_reliability(node: PoolNode) -> float:
    """Its reliability; where that is not known, 1."""
    return 1.0 if node.reliability is None else node.reliability


def plan_with_backups(request: PoolRequest) -> RavnestPlan:
    """The plan of the first nodes, with the last ones as backups.

    Raises:
        UsageError: as `make_plan`, or there are as many backups as nodes.
    """
    if not request.backups:
        return make_plan(request)
    members = len(request.pool) - request.backups
    if members < 1:
        fact = f"no node is left to train (nodes: {len(request.pool)}, backups: {request.backups})"
        raise UsageError(f"{fact}; take fewer --backups, or add nodes")
    if not request.layers:
        raise UsageError("--bytes has no layers to back up; give --preset instead of --bytes, or leave --backups out")
    plan = make_plan(replace(request, pool=request.pool[:members], backups=0))
    spare = request.pool[members:]
    rounds = len(plan.clusters) > 1 or request.rules.rounds
    sizes = StageSizes(request.layers, replace(request.rules, rounds=rounds))
    clusters = _BackupPlanner(sizes, spare).with_backups(plan.clusters)
    backup_names = {stage.backup.name for cluster in clusters for stage in cluster.stages if stage.backup}
    waiting = (*plan.waiting, *(node for node in spare if node.name not in backup_names))
    return replace(plan, clusters=clusters, waiting=waiting)


class _BackupPlanner:
    """The backups of the places of some clusters.

    Args:
        sizes: bytes of every stage of these clusters.
        spare: nodes without a place.
    """

    def __init__(self, sizes: StageSizes, spare: Sequence[PoolNode]):
        self._sizes, self._spare = sizes, spare

    def with_backups(self, clusters: Sequence[PlannedCluster]) -> tuple[PlannedCluster, ...]:
        """These clusters with backups, and with fewer microbatches alive where that leaves room for one.

        Then a place has a backup that had none (see `with_fewer`), and perhaps a more reliable one has none instead.
        """
        formed = [*clusters]
        backups = self._assigned_backups(clusters)
        spare_count = len(self._spare)
        for place in self._ordered_places(clusters):
            pace = clusters[place.cluster].pace
            if spare_count and place not in backups and (roomier := self._with_room(pace, formed, place)):
                formed[place.cluster] = roomier
                backups = self._assigned_backups(formed)
            spare_count -= place in backups
        return tuple(self._with_assigned(cluster, number, backups) for number, cluster in enumerate(formed))

    def _with_room(
        self, pace_before: Pace | None, formed: Sequence[PlannedCluster], place: ClusterPlace
    ) -> PlannedCluster | None:
        """The cluster of a place with fewer microbatches alive than before, so that the place gets a backup.

        Less reliable places keep theirs, which come first and get smaller.
        """
        number = place.cluster
        cluster = formed[number]
        nodes = [stage.node for stage in cluster.stages]
        cut = [range(stage.first, stage.end) for stage in cluster.stages]

        def with_alive(alive: Sequence[int]) -> PlannedCluster:
            stages = zip(cluster.stages, alive, self._sizes.of_cut(cut, alive), strict=True)
            return replace(
                cluster, stages=tuple(replace(stage, alive=count, bytes=size) for stage, count, size in stages)
            )

        def has_room(alive: Sequence[int]) -> bool:
            return place in self._assigned_backups([*formed[:number], with_alive(alive), *formed[number + 1 :]])

        pace = pace_before and with_fewer(nodes, cut, self._sizes, pace_before, has_room)
        return replace(with_alive(pace.alive), pace=pace) if pace else None

    def _ordered_places(self, clusters: Sequence[PlannedCluster]) -> list[ClusterPlace]:
        """The places, those first that are backed up first."""
        places = [
            ClusterPlace(number, stage)
            for number, cluster in enumerate(clusters)
            for stage in range(len(cluster.stages))
        ]
        return sorted(places, key=lambda place: known_reliability(clusters[place.cluster].stages[place.stage].node))

    def _assigned_backups(self, clusters: Sequence[PlannedCluster]) -> dict[ClusterPlace, PoolNode]:
        order = self._ordered_places(clusters)
        stages = [clusters[place.cluster].stages[place.stage] for place in order]
        places = [HeldPlace(stage.node, *2 * [self._bytes_with_backup(stage)]) for stage in stages]
        return {order[index]: node for index, node in assign_backups(places, self._spare).items()}

    def _bytes_with_backup(self, stage: PlannedStage) -> int:
        return self._sizes.with_backup(stage.first, stage.end, stage.bytes)

    def _with_assigned(
        self, cluster: PlannedCluster, number: int, backups: Mapping[ClusterPlace, PoolNode]
    ) -> PlannedCluster:
        stages = list[PlannedStage]()
        for index, stage in enumerate(cluster.stages):
            backup = backups.get(ClusterPlace(number, index))
            stages.append(replace(stage, backup=backup, bytes=self._bytes_with_backup(stage)) if backup else stage)
        return replace(cluster, stages=tuple(stages))


def plan_remaining_nodes(request: PoolRequest, nodes: int) -> RavnestPlan:
    """Plan a pool that may have lost nodes. If it cannot hold the request, plan fewer backups, then fewer clusters.

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
