"""Which generation follows one that ends, and what it is to train: no step is left out, and none counts twice.

The steps of a training are dealt by turn (`Generation.step_of`). When a generation ends, the clusters that are left
have trained all steps before the last committed round, and some since (`ClusterStop`). What lost clusters trained since
is in no parameters any more: the next generation trains those steps first. Nodes that wait become late clusters or new
backups in them, where all have the room (`Joining`). No torch.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipelined.errors import UsageError, in_bytes
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.backups import HeldPlace, assign_backups, plan_remaining_nodes
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import StageRules, StageSizes
from pipelined.ravnest.records.generation import BackupPlace, Continuation, Generation
from pipelined.ravnest.records.nodes import NodeRecord
from pipelined.ravnest.records.places import MAX_STEP, StagePlace
from pipelined.ravnest.records.progress import ClusterStop
from pipelined.ravnest.records.view import RavnestView
from pipelined.state.stages.versions import Version

STOPPING = "until the clusters that train have stopped, to go on with them"


class Newcomers(NamedTuple):
    """What nodes that waited become in the generation that follows.

    Args:
        clusters: new ones.
        backups: of places, by the numbers of the clusters in the generation that ends.
        wait_text: what they wait for meanwhile, or those that become nothing, in words.
    """

    clusters: Sequence[list[StagePlace]] = ()
    backups: Sequence[BackupPlace] = ()
    wait_text: str = ""

    def __bool__(self) -> bool:
        return bool(self.clusters or self.backups)


NO_NEWCOMERS = Newcomers()


def new_backups(
    generation: Generation,
    lone_holders: Mapping[ClusterPlace, PoolNode],
    waiting: Sequence[NodeRecord],
    sizes: StageSizes,
) -> list[BackupPlace] | str:
    """Backups for places that have none, of nodes that wait; see `assign_backups`. Or what they have no room for.

    The node of a place needs room for a copy of its stage until this is sent. What is left of the backup's RAM, beside
    its stage, is room for the inputs that wait there meanwhile.

    Args:
        lone_holders: by place, the node that holds it alone.
        sizes: bytes of every stage.
    """
    places = [_held_place(generation, place, node, sizes) for place, node in lone_holders.items()]
    assigned = assign_backups(places, [newcomer.pool_node for newcomer in waiting])
    if not assigned:
        return _lack_of_room(places, waiting)
    records = {newcomer.name: newcomer for newcomer in waiting}
    backups = list[BackupPlace]()
    for index, place in enumerate(lone_holders):
        if index in assigned:
            record = records[assigned[index].name]
            room = _room_for_inputs(generation.stage_place(place), record.ram - places[index].backup_bytes, sizes)
            backups.append(BackupPlace(*place, record.holder, room))
    return backups


def _held_place(generation: Generation, place: ClusterPlace, node: PoolNode, sizes: StageSizes) -> HeldPlace:
    """What the node of a place needs to give it to a new backup, and what the backup needs to get it."""
    stages = generation.clusters[place.cluster]
    layers = (generation.stage_place(place).first, generation.stage_place(place).end)
    giving_sizes = StageSizes(sizes.layers, replace(sizes.rules, gives=True))
    stage_bytes = sizes.of_stages(stages)[place.stage]
    most_bytes = max(giving_sizes.of_stages(stages)[place.stage], sizes.with_backup(*layers, stage_bytes))
    backup_most = sizes.with_backup(*layers, max(stage_bytes, sizes.receiving(*layers)))
    return HeldPlace(node, bytes=most_bytes, backup_bytes=backup_most)


def _room_for_inputs(stage_place: StagePlace, free_bytes: int, sizes: StageSizes) -> int:
    """Microbatches of which the inputs may wait in a new backup that has so many bytes left."""
    bytes_each = max(1, sizes.waiting(stage_place.first, stage_place.end))
    return min(sizes.rules.behind + free_bytes // bytes_each, MAX_STEP - 1)


def _lack_of_room(places: Sequence[HeldPlace], waiting: Sequence[NodeRecord]) -> str:
    if not places:
        return "because each place has a backup"
    if backup_bytes := [place.backup_bytes for place in places if place.node.ram >= place.bytes]:
        use = "a place and its microbatches alive"
        need = min(backup_bytes)
        ram = max(newcomer.ram for newcomer in waiting)
        return f"because none of them has room for {use} ({lack_of_ram(need, ram)}); start one with more --ram"
    nearest = min(places, key=lambda place: place.bytes - place.node.ram)
    fact = f"because {nearest.node.name} has no room for the copy that a backup gets"
    return f"{fact} ({lack_of_ram(nearest.bytes, nearest.node.ram)}); start it with more --ram"


def lack_of_ram(need: int, ram: int) -> str:
    """The bytes that a node needs, has and lacks, in words."""
    return f"needed: {in_bytes(need)}, RAM: {in_bytes(ram)}, missing: {in_bytes(need - ram)}"


def next_generation(
    generation: Generation,
    number: int,
    rounds: int,
    stops: Mapping[int, ClusterStop],
    newcomers: Newcomers = NO_NEWCOMERS,
) -> Generation:
    """The generation that follows this one, with what the nodes of this one have in memory.

    Args:
        number: of the new one.
        rounds: of this generation that are committed.
        stops: by cluster, what each of those that are left had done.
        newcomers: late clusters and new backups. Late ones that are left and have received no committed
            round are late again.
    """
    averaged = [cluster for cluster in sorted(stops) if rounds or not generation.is_late(cluster)]
    never_averaged = [cluster for cluster in sorted(stops) if cluster not in averaged]
    since_round = {cluster: stops[cluster].steps_since_round for cluster in averaged}
    missing_steps, end = _missing_steps(generation, rounds, stops[averaged[0]].done, since_round)
    continuation = Continuation(
        previous=generation.number,
        rounds=rounds,
        late_clusters=len(never_averaged) + len(newcomers.clusters),
        steps_to_repeat=missing_steps,
        steps_since_round=[*since_round.values()] if len(averaged) > 1 else [[]],  # a cluster alone has what all have
    )
    clusters, backups = _clusters_and_backups(generation, [*averaged, *never_averaged], newcomers)
    return Generation(number, clusters, Version(end - len(missing_steps), ""), continuation, backups)


def _missing_steps(
    generation: Generation, rounds: int, averaged_steps: int, since_round: Mapping[int, Sequence[int]]
) -> tuple[list[int], int]:
    """The steps that no remaining cluster has trained, and the step from which on none is trained.

    Args:
        averaged_steps: steps before the last committed round; see `ClusterStop`.
        since_round: by each remaining cluster that has the average, the steps that it trained since.
    """
    steps_to_repeat, start = generation.continuation.steps_to_repeat, generation.start.step
    missing_steps = {*steps_to_repeat[averaged_steps - start :]}
    undealt = start + len(steps_to_repeat)
    if not rounds:  # what the generation before had trained since its last round is in no average yet
        for cluster, steps in enumerate(generation.continuation.steps_since_round):
            missing_steps |= {*steps} if cluster not in since_round else set()
    trained = {step for steps in since_round.values() for step in steps}
    end = max(undealt, averaged_steps, *(step + 1 for step in trained), 0)
    return sorted((missing_steps | {*range(max(undealt, averaged_steps), end)}) - trained), end


def _clusters_and_backups(
    generation: Generation, order: Sequence[int], newcomers: Newcomers
) -> tuple[list[list[StagePlace]], list[BackupPlace]]:
    """The remaining clusters in this order, then the late ones; and the backups by the new numbers."""
    backups = [*generation.backups, *newcomers.backups]
    kept_backups = [
        backup._replace(cluster=order.index(backup.cluster)) for backup in backups if backup.cluster in order
    ]
    return [*(generation.clusters[index] for index in order), *newcomers.clusters], kept_backups


def rules_of(request: PoolRequest, nodes: Iterable[NodeRecord]) -> StageRules:
    """How these nodes hold their stages."""
    return replace(request.rules, saves=any(node.saves for node in nodes))


@dataclass(frozen=True)
class Joining:
    """What nodes that wait can become beside clusters that train.

    Args:
        request: as of the clusters that train.
        nodes: of the whole training.
    """

    view: RavnestView
    request: PoolRequest
    nodes: int

    async def newcomers(self, generation: Generation) -> Newcomers:
        """What they become: clusters where these are too few, else backups if they are to be any."""
        view = self.view
        intact = self.view.intact(generation)
        places = [generation.place_of(node) for node in view.nodes.values()]
        if view.digests(generation):
            return Newcomers(wait_text="for the end: a cluster has trained its last step")
        if not view.free_nodes or any(place and place.cluster not in intact for place in places):
            return Newcomers(wait_text="until all nodes of lost clusters have left them")  # such a node then waits, too
        first_role = self.request.newcomers or ("backup" if self.request.backups else "cluster")
        backups_or_lack = self._new_backups(generation) if first_role == "backup" else []
        lack, backups = (f"{backups_or_lack}; and ", []) if isinstance(backups_or_lack, str) else ("", backups_or_lack)
        is_short = self.request.clusters is not None and len(intact) < self.request.clusters
        clusters_or_lack = await self._late_clusters(generation) if is_short or not backups else []
        if isinstance(clusters_or_lack, str):
            return Newcomers(backups=backups, wait_text=STOPPING if backups else lack + clusters_or_lack)
        return Newcomers(clusters_or_lack, [] if clusters_or_lack else backups, STOPPING)

    def _new_backups(self, generation: Generation) -> list[BackupPlace] | str:
        """Backups for the places that one node holds alone, of nodes that wait; or why there are none."""
        view = self.view
        intact = self.view.intact(generation)
        remaining = {place: view.remaining_at(generation, place) for place, _ in generation.all_places}
        lone_holders = {
            place: view.pool_node(view.nodes[holders[0].name])
            for place, holders in remaining.items()
            if place.cluster in intact and len(holders) == 1
        }
        rules = replace(rules_of(self.request, view.nodes.values()), rounds=len(intact) > 1)
        return new_backups(generation, lone_holders, view.free_nodes, StageSizes(self.request.layers, rules))

    async def _late_clusters(self, generation: Generation) -> list[list[StagePlace]] | str:
        """The clusters that nodes which wait can form beside these; or why there are none."""
        waiting = self.view.free_nodes
        intact = self.view.intact(generation)
        missing_clusters = None if self.request.clusters is None else self.request.clusters - len(intact)
        if missing_clusters is not None and missing_clusters < 1:
            return f"because as many clusters train as --clusters says ({len(intact)})"
        rules = replace(rules_of(self.request, self.view.nodes.values()), rounds=True)
        if lack := self._lack(generation, intact, rules):
            return lack
        pool = tuple(map(self.view.pool_node, waiting))
        request = replace(self.request, pool=pool, clusters=missing_clusters, rules=rules, backups=0)
        try:
            plan = await asyncio.to_thread(plan_remaining_nodes, request, self.nodes)
        except UsageError as error:
            return f"because they cannot form a cluster ({error})"
        return Generation.clusters_of(plan, waiting)

    def _lack(self, generation: Generation, intact: Sequence[int], rules: StageRules) -> str:
        """Which node has no room for a late cluster beside its own; "": each has.

        One cluster alone was planned without the copies of a round, and none with those of the moments to be sent.
        """
        for cluster in intact:
            sizes = StageSizes(self.request.layers, replace(rules, sends_moments=cluster == intact[0]))
            use = "a copy of the moments to send" if cluster == intact[0] else "the copies of a round"
            stages = generation.clusters[cluster]
            for stage, (stage_place, need) in enumerate(zip(stages, sizes.of_stages(stages), strict=True)):
                holders = self.view.remaining_at(generation, ClusterPlace(cluster, stage))
                need = sizes.with_backup(stage_place.first, stage_place.end, need) if len(holders) > 1 else need
                for holder in holders:
                    if need > (ram := self.view.nodes[holder.name].ram):
                        fact = f"because {holder.name} has no room for {use} ({lack_of_ram(need, ram)})"
                        return f"{fact}; start it with more --ram; with --checkpoint on each node a plan has this room"
        return ""
