"""The order of a node: what it did in its cluster, in order, so that another run can do the same again.

A file for each node, `GENERATION-CLUSTER-STAGE-NAME.json`: the number of the generation, and the node's place.

    {"task": ..., "clusters": ..., "cluster": 0, "stage": 1, "order": ["F0", "F1", "B0", ...], "added": {"1": 16},
     "refused": [2]}

`F3` and `B3` are the forward and the backward of the node's microbatch 3, counted from its first step; `added` has by
round the updates after which the node added its difference, and `refused` the rounds that were refused. Order, data and
generation determine every bit. No torch.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelined.errors import MALFORMED, UsageError
from pipelined.process.reporting.events import warn
from pipelined.process.whole_file import whole_file
from pipelined.programs.instructions import OP_NAMES, Instruction
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.records.generation import Generation
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.segments.replay import Order

LETTERS = {name: op for op, name in OP_NAMES.items() if op in "FB"}


@dataclass(frozen=True)
class NodeOrder:
    """What one node did.

    Args:
        instructions: an op and the microbatch of each forward and backward, in order.
        added: by round the updates after which its difference was added.
        refused: the rounds that were refused.
    """

    instructions: tuple[str, ...]
    added: Mapping[int, int]
    refused: tuple[int, ...] = ()

    def of_stage(self, stage: int) -> dict[int, Order]:
        """The instructions as a rank follows them."""
        return {
            0: tuple(Instruction(instruction[0], 0, stage, int(instruction[1:])) for instruction in self.instructions)
        }


class OrderTracer(NullTracer):
    """Records the forwards and backwards of one rank alone.

    Args:
        microbatches: of a step.
        tracer: records the same computations.
    """

    def __init__(self, microbatches: int, tracer: Tracer):
        super().__init__()
        self._microbatches = microbatches
        self._tracer = tracer
        self.instructions = list[str]()

    def record(self, category: str, name: str, start: float, end: float, coordinates: Any = ()) -> None:
        self._tracer.record(category, name, start, end, coordinates)
        if name in LETTERS:
            step, _, microbatch, _ = coordinates
            self.instructions.append(f"{LETTERS[name]}{step * self._microbatches + microbatch}")


@dataclass(frozen=True)
class OrderDirectory:
    """Where the orders of a run are written.

    Args:
        task: what is trained, as the program's directory has it.
    """

    path: Path
    task: str

    def file(self, generation: Generation, place: ClusterPlace, is_backup: bool = False) -> Path:
        """The file of the order of the node at this cluster and stage.

        Args:
            is_backup: whether to name that of its backup.
        """
        name = re.sub(r"[^\w.-]", "_", generation.holders(place)[is_backup].name)
        return self.path / f"{generation.number}-{place.cluster}-{place.stage}-{name}.json"

    def write(self, generation: Generation, place: ClusterPlace, order: NodeOrder, is_backup: bool = False) -> None:
        """Write the order of the node at this cluster and stage, whole: until then the file has the one before.

        Raises:
            OSError: it cannot be written.
        """
        fields = {"task": self.task, "clusters": generation.stored(), **place._asdict()}
        added = {str(round_): updates for round_, updates in order.added.items()}
        self.path.mkdir(parents=True, exist_ok=True)
        with whole_file(self.file(generation, place, is_backup)) as part:
            part.write_text(
                json.dumps({**fields, "order": order.instructions, "added": added, "refused": order.refused})
            )


class OrderRecorder:
    """Records the order of one node while it trains.

    Args:
        directory: where to write the order; None: nowhere.
        place: see `OrderDirectory.write`.
        microbatches: of a step.
        is_backup: whether the node is a backup.
        tracer: see `OrderTracer`.

    Attributes:
        added, refused: see `NodeOrder`.
    """

    def __init__(
        self,
        directory: OrderDirectory | None,
        generation: Generation,
        place: ClusterPlace,
        microbatches: int,
        is_backup: bool = False,
        *,
        tracer: Tracer,
    ):
        self._directory = directory
        self.generation = generation
        self.place = place
        self._is_backup = is_backup
        self.tracer = OrderTracer(microbatches, tracer)
        self.added = dict[int, int]()
        self.refused = list[int]()

    async def write(self) -> None:
        """Write what was done so far; where that fails it is an event. Cost: a thread writes the whole order again."""
        if self._directory is not None:
            order = NodeOrder(tuple(self.tracer.instructions), dict(self.added), tuple(self.refused))
            try:
                await asyncio.to_thread(self._directory.write, self.generation, self.place, order, self._is_backup)
            except OSError as error:
                file = self._directory.file(self.generation, self.place, self._is_backup)
                warn("order not written", file=str(file), why=error)


@dataclass(frozen=True)
class RunOrders:
    """The orders of one generation in a directory.

    Args:
        orders: by cluster and stage.
        end_step: the steps of the training that were done when a later one began with what this one saved; 0: none did.
        successor: the generation that went on with what the nodes of this one had in memory; None: none did.
    """

    task: str
    generation: Generation
    orders: Mapping[ClusterPlace, NodeOrder]
    end_step: int = 0
    successor: Generation | None = None

    def went_on(self, cluster: int) -> bool:
        """Whether this cluster was among those that went on."""
        return self.successor is not None and self.successor.place_before(self.generation, cluster) is not None

    @property
    def refused(self) -> set[int]:
        """The rounds that were refused before the last one that a node recorded."""
        return {round_ for order in self.orders.values() for round_ in order.refused}

    @property
    def needed(self) -> list[int]:
        """The numbers of the clusters of which something is in later parameters."""
        numbers = range(len(self.generation.clusters))
        return [n for n in numbers if not self.successor or self.successor.continuation.rounds or self.went_on(n)]


def read_orders(path: Path) -> list[RunOrders]:
    """The orders of the last generation in a directory, and before it of those that it goes back to.

    Raises:
        UsageError: there are none, a node's is missing, or a file is of another release or of another run.
    """
    runs = [_read_order(file) for file in sorted(path.glob("*.json"))] if path.is_dir() else []
    if not runs:
        raise UsageError(f"there are no orders in {path}; train with --orders {path}")
    number = max(run.generation.number for run in runs)
    end_step = 0
    chain = list[RunOrders]()
    successor: Generation | None = None
    while True:
        chain.insert(0, _orders_of_generation(path, runs, number, end_step, successor))
        generation = chain[0].generation
        if generation.continuation.previous:
            number = generation.continuation.previous
            end_step = 0
            successor = generation
        elif generation.start.step:
            number = int(generation.start.lineage.rpartition("-")[2])
            end_step = generation.start.step
            successor = None
        else:
            return chain


def _orders_of_generation(
    path: Path, runs: list[RunOrders], number: int, end_step: int, successor: Generation | None
) -> RunOrders:
    """The orders of all nodes of a generation of which something is in later parameters."""
    orders = dict[ClusterPlace, NodeOrder]()
    own_runs = [run for run in runs if run.generation.number == number]
    if not own_runs:
        raise UsageError(f"the orders of clusters {number} are missing in {path}; later ones went on from them")
    task, generation = own_runs[0].task, own_runs[0].generation
    for run in own_runs:
        if (run.task, run.generation) != (task, generation):
            raise UsageError(f"the orders in {path} are of different runs; give each run a directory of its own")
        for place, order in run.orders.items():  # of two nodes of a place the one that did more
            orders[place] = max(orders.get(place, order), order, key=lambda order: len(order.instructions))
    run_orders = RunOrders(task, generation, orders, end_step, successor)
    needed = run_orders.needed
    missing_nodes = [
        stage_place.holder.name
        for place, stage_place in generation.all_places
        if place.cluster in needed and place not in orders
    ]
    if missing_nodes:
        fact = f"orders are missing in {path} (nodes: {', '.join(missing_nodes)})"
        raise UsageError(f"{fact}; copy there what each node wrote to its --orders")
    return run_orders


def _read_order(path: Path) -> RunOrders:
    try:
        fields = json.loads(path.read_text())
        generation = Generation.from_stored(fields["clusters"])
        instructions = tuple(map(str, fields["order"]))
        if not all(re.fullmatch(r"[FB]\d{1,15}", instruction) for instruction in instructions):
            raise ValueError("no forward or backward")
        added = {int(round_): int(updates) for round_, updates in fields["added"].items()}
        order = NodeOrder(instructions, added, tuple(map(int, fields.get("refused", ()))))
        place = ClusterPlace(int(fields["cluster"]), int(fields["stage"]))
        return RunOrders(str(fields["task"]), generation, {place: order})
    except (OSError, *MALFORMED) as error:
        fact = f"{path} is no order of this release ({type(error).__name__}: {error})"
        raise UsageError(f"{fact}; give a directory that --orders wrote") from error
