"""A whole plan: which nodes form clusters, which layers each holds, microbatches alive, rings, and bytes of a round."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelined.errors import UsageError, in_bytes
from pipelined.ravnest.planning.cuts import Cuts, Objective
from pipelined.ravnest.planning.formation import Formation, Method, Partition, form, method_for
from pipelined.ravnest.planning.pace import Pace, pace_of
from pipelined.ravnest.planning.pool import NewcomerRole, PoolNode
from pipelined.ravnest.planning.ring_layout import Ring, rings_between, round_bytes
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes


@dataclass(frozen=True)
class PoolRequest:
    """What is to be planned.

    Args:
        pool: the nodes, as `check_pool` takes them.
        layers: the model; empty: group by `need` alone, without cutting.
        need: bytes of a model that is not described by layers.
        clusters: how many clusters to form; None: the most that differ by at most `balance` of their mean.
        objective: what a cut is chosen by; None: rate where all speeds are known, else transfer.
        method: how the cut is searched; None: exhaustive for few nodes.
        backups: how many nodes, the last ones of the pool, are to be backups of others' places.
    """

    pool: tuple[PoolNode, ...]
    layers: tuple[LayerSize, ...] = ()
    need: int = 0
    clusters: int | None = None
    balance: float = 0.25
    objective: Objective | None = None
    method: Method | None = None
    rules: StageRules = field(default_factory=StageRules)
    backups: int = 0
    newcomers: NewcomerRole | None = None


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """The layers [first, end) on one node and its backup, with the bytes each will hold and its microbatches alive."""

    node: PoolNode
    first: int
    end: int
    bytes: int
    alive: int
    backup: PoolNode | None = None

    def to_dict(self) -> dict[str, Any]:
        fields = {"node": self.node.name, "layers": [self.first, self.end], "bytes": self.bytes}
        return fields | {"ram": self.node.ram, "alive": self.alive, "backup": self.backup.name if self.backup else None}


@dataclass(frozen=True)
class PlannedCluster:
    """A cluster: its nodes, its stages where the model is cut, and its predicted pace there."""

    nodes: tuple[PoolNode, ...]
    stages: tuple[PlannedStage, ...]
    pace: Pace | None = None

    @property
    def transfer_s(self) -> float:
        """Seconds: the sum of RAM over bandwidth."""
        return sum(node.transfer_s for node in self.nodes)

    @property
    def pace_text(self) -> str:
        """Its predicted pace in words, and why it is below its goal where it is; empty where a speed is not known."""
        if not self.pace or self.pace.seconds is None or self.pace.share is None:
            return ""
        text = f"a microbatch every {self.pace.seconds:.3g} s"
        shortfall_text = f", {self.pace.share:.0%} of the rate of its slowest node or line ({self.pace.shortfall})"
        return text + shortfall_text * bool(self.pace.shortfall)

    def to_dict(self) -> dict[str, Any]:
        no_stage = {"layers": None, "bytes": None, "alive": None, "backup": None}
        uncut = [{"node": node.name, "ram": node.ram, **no_stage} for node in self.nodes]
        places = [stage.to_dict() for stage in self.stages] or uncut
        seconds, share = (self.pace.seconds, self.pace.share) if self.pace else (None, None)
        return {"places": places, "transfer_s": self.transfer_s, "microbatch_s": seconds, "share": share}


@dataclass(frozen=True)
class RavnestPlan:
    """The answer.

    Args:
        waiting: nodes in no cluster: too small for any layer, or for any place that has no backup yet.
        rings: by elements of the model; their ranks are indices into `members`.
    """

    clusters: tuple[PlannedCluster, ...]
    waiting: tuple[PoolNode, ...]
    method: Method
    objective: Objective
    layers: tuple[LayerSize, ...]
    rings: tuple[Ring, ...] = ()

    @property
    def spread_s(self) -> float:
        """Seconds between the longest and the shortest transfer time."""
        times = [cluster.transfer_s for cluster in self.clusters]
        return max(times) - min(times)

    @property
    def members(self) -> list[PoolNode]:
        """The nodes of all stages, in the order of clusters and stages: the ranks of the rings."""
        return [stage.node for cluster in self.clusters for stage in cluster.stages]

    def round_bytes(self) -> dict[str, int]:
        """Bytes that each node sends in a round of averaging; see `round_bytes`."""
        members = self.members
        sent_bytes = round_bytes(self.rings, self.layers, len(members))
        return {node.name: nbytes for node, nbytes in zip(members, sent_bytes, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints. A layer's seconds are those of the fastest node, if speeds are known."""
        members = self.members
        speeds = [node.flops for cluster in self.clusters for node in cluster.nodes if node.flops]
        return {
            "clusters": [cluster.to_dict() for cluster in self.clusters],
            "spread_s": self.spread_s,
            "waiting": [node.name for node in self.waiting],
            "method": self.method,
            "layers": [
                {
                    "parameters": layer.parameters,
                    "activation_bytes": layer.activation_bytes,
                    "seconds": layer.work / max(speeds) if speeds else None,
                }
                for layer in self.layers
            ],
            "rings": [
                {"low": ring.low, "high": ring.high, "nodes": [members[rank].name for rank in ring.ranks]}
                for ring in self.rings
            ],
            "round_bytes": self.round_bytes(),
        }


def make_plan(request: PoolRequest) -> RavnestPlan:
    """Form clusters of all nodes, cut the model in each, and derive the rest; `backups` assigns backups.

    Raises:
        UsageError: the pool cannot hold one copy of the model per cluster, no cut fits, a layer is larger than every
            node, there are more clusters than can be, or `rate` without speeds.
    """
    unknown = [node.name for node in request.pool if node.flops is None]
    objective = request.objective or ("transfer" if unknown or not request.layers else "rate")
    if objective == "rate" and (unknown or not request.layers):
        lack = f"not known of: {', '.join(unknown)}" if unknown else "--bytes has no layers to time"
        raise UsageError(
            f"the objective rate needs every node's speed ({lack}); add the column flops, or take transfer"
        )
    planner = _Planner(replace(request, objective=objective), objective)
    return planner.plan(planner.most_clusters() if request.clusters is None else planner.partition(request.clusters))


class _Planner:
    def __init__(self, request: PoolRequest, objective: Objective):
        self._request, self._objective = request, objective
        self._nodes = request.pool
        self._waiting = tuple[PoolNode, ...]()
        if request.layers:
            single = StageSizes(request.layers, replace(request.rules, rounds=False))
            self._nodes, self._waiting = _split_pool(request.pool, single)
        self._method = method_for(len(self._nodes), request.method)
        self._inputs: dict[bool, tuple[StageSizes | None, Cuts | None, Formation]] = {}

    def partition(self, clusters: int) -> Partition:
        """The best partition into this many clusters; raises UsageError where there is none."""
        sizes, _, formation = self._search_inputs(clusters)
        ram = sum(node.ram for node in self._nodes)
        count = len(self._nodes)
        need = formation.need
        if (lack := need * clusters - ram) > 0:
            fact = f"the pool cannot hold the model {clusters} times (RAM: {in_bytes(ram)}, needed: {clusters} of "
            fact += f"{in_bytes(need)}, missing: {in_bytes(lack)})"
            raise UsageError(f"{fact}; add nodes or RAM, or take fewer --clusters")
        if clusters > count:
            fact = f"more clusters than nodes (clusters: {clusters}, nodes: {count})"
            raise UsageError(f"{fact}; take fewer --clusters, or add nodes")
        partition = form(formation, clusters, self._method)
        if partition is None:
            fact = f"no {'cut' if sizes else 'grouping'} fits, although the RAM adds up (clusters: {clusters}, nodes: "
            fact += f"{count}, RAM: {in_bytes(ram)}, needed: {clusters} of {in_bytes(need)} at least)"
            remedy = "take fewer --clusters or add RAM"
            remedy += ", or try --weights newest, a smaller --microbatch or a lower --ahead" if sizes else ""
            raise UsageError(f"{fact}; {remedy}")
        return partition

    def most_clusters(self) -> Partition:
        """The most clusters that are near enough to one another; one cluster always is."""
        for clusters in range(len(self._nodes), 1, -1):
            _, _, formation = self._search_inputs(clusters)
            if sum(node.ram for node in self._nodes) < formation.need * clusters:
                continue
            partition = form(formation, clusters, self._method)
            costs = [formation.cost(members) for members in partition or ()]
            if partition and max(costs) - min(costs) <= self._request.balance * sum(costs) / len(costs):
                return partition
        return self.partition(1)

    def plan(self, groups: Partition) -> RavnestPlan:
        sizes, cuts, _ = self._search_inputs(len(groups))
        clusters = []
        for members in groups:
            nodes = tuple(self._nodes[node] for node in members)
            cut = cuts.best_cut(members) if cuts else None
            if sizes is None or cut is None:
                clusters.append(PlannedCluster(nodes, ()))
            else:
                spans = [range(stage.first, stage.end) for stage in cut]
                clusters.append(_cluster([self._nodes[stage.node] for stage in cut], spans, sizes))
        request = self._request
        rings = rings_between([cluster.stages for cluster in clusters], request.layers) if request.layers else ()
        return RavnestPlan(
            clusters=tuple(clusters),
            waiting=self._waiting,
            method=self._method,
            objective=self._objective,
            layers=request.layers,
            rings=tuple(rings),
        )

    def _search_inputs(self, clusters: int) -> tuple[StageSizes | None, Cuts | None, Formation]:
        """Sizes, cuts and formation; with several clusters the copies of a round are held, too."""
        request = self._request
        rounds = clusters > 1 or request.rules.rounds
        if rounds not in self._inputs and not request.layers:
            self._inputs[rounds] = None, None, Formation(self._nodes, request.need, self._objective, lambda _: 0.0)
        elif rounds not in self._inputs:
            sizes = StageSizes(request.layers, replace(request.rules, rounds=rounds))
            cuts = Cuts(self._nodes, sizes, self._objective)
            formation = Formation(self._nodes, sizes.least, self._objective, cuts.largest_cost, cuts.lack)
            self._inputs[rounds] = sizes, cuts, formation
        return self._inputs[rounds]


def _split_pool(pool: Sequence[PoolNode], sizes: StageSizes) -> tuple[tuple[PoolNode, ...], tuple[PoolNode, ...]]:
    """The nodes that can hold a layer, and those that wait.

    Raises:
        UsageError: a layer is larger than every node.
    """
    needs = [sizes.of_layer(index) for index in range(len(sizes.layers))]
    largest_bytes = max(needs)
    largest = max(pool, key=lambda node: node.ram)
    if largest_bytes > largest.ram:
        fact = (
            f"layer {needs.index(largest_bytes)} is larger than every node (layer: {in_bytes(largest_bytes)}, largest: "
        )
        fact += f"{largest.name!r} with {in_bytes(largest.ram)})"
        raise UsageError(f"{fact}; add a larger node, or take a smaller --microbatch or model")
    large = tuple(node for node in pool if node.ram >= min(needs))
    return large, tuple(node for node in pool if node.ram < min(needs))


def _cluster(nodes: Sequence[PoolNode], cut: Sequence[range], sizes: StageSizes) -> PlannedCluster:
    pace = pace_of(nodes, cut, sizes)
    stages = tuple(
        PlannedStage(node, layers.start, layers.stop, nbytes, count)
        for node, layers, nbytes, count in zip(nodes, cut, sizes.of_cut(cut, pace.alive), pace.alive, strict=True)
    )
    return PlannedCluster(tuple(nodes), stages, pace)
