"""A node: it joins, waits until it is in a cluster, trains its stage, and joins again.

An incarnation of a node is in at most one cluster, and stays in it when others are lost or come. A cluster is lost when
one of its nodes leaves or loses its lease; the others join again, too. Imports torch through the cluster's training.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from traceback import clear_frames

from pipelined.actors.device.host_memory import PeakMemory
from pipelined.aio.tasks import beside, with_timeout
from pipelined.errors import printable
from pipelined.membership.connection import LocalMember
from pipelined.membership.registration import Registration, run_under_leases
from pipelined.membership.view import NoLongerValid
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.cluster_member import ClusterMember, ClusterOutcome, StageStart
from pipelined.ravnest.node.cluster_records import ClusterRecords
from pipelined.ravnest.node.planned_memory import PlannedPlaces
from pipelined.ravnest.records.generation import AWAITED_STATE, Generation
from pipelined.ravnest.records.nodes import NODES, NodeRecord
from pipelined.ravnest.records.places import Holder
from pipelined.ravnest.records.view import RavnestView
from pipelined.ravnest.stage.parameter_exchange import ParameterExchange
from transports import Nursery, TransportError


@dataclass(frozen=True)
class Capacity:
    """What a node offers; the fields are those of `NodeRecord`."""

    ram: int
    bandwidth: float
    flops: float = 0.0
    delay: float = 0.0
    reliability: float = 1.0


class TaskReplaced(Exception):
    """What is trained was replaced before any cluster was formed; the node is to read it again, and to join again."""


class RavnestNode:
    """One node.

    Args:
        local: this process; its name is unique among the nodes.
        member: trains its stage in a cluster.
        lease_s: seconds without a heartbeat after which it is removed.
        say: prints a line.
        task: revision of the directory's record of what this node trains; 0: there is none.
        memory: of this process, if it is the node's alone.
        planned_places: what places are planned to hold, for the error where memory runs out; None: that is not known.
    """

    def __init__(
        self,
        local: LocalMember,
        member: ClusterMember,
        capacity: Capacity,
        lease_s: float,
        say: Say,
        *,
        task: int = 0,
        memory: PeakMemory | None = None,
        planned_places: PlannedPlaces | None = None,
    ):
        self._task, self._memory, self._planned_places = task, memory, planned_places
        self._local = local
        self._member = member
        self._capacity = capacity
        self._lease_s = lease_s
        self._say = say
        self.view = RavnestView(local.directory, local.clock)
        self.exchange = ParameterExchange(local, self.view, member.saving)

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            NameTaken: another process has this node's name. AgreedError: the training diverged. TaskReplaced.
        """
        running = run_under_leases(self._local, NODES, self._lease_s, self._run_registered)
        await beside(running, self.view.follow(), self._raise_when_failed(), self._raise_when_replaced())

    async def _run_registered(self, registration: Registration) -> None:
        """Take part under one lease; the end waits for the tasks that go on after the training."""
        async with Nursery() as closing_tasks:
            await self._take_part(registration, closing_tasks)

    async def _take_part(self, registration: Registration, closing_tasks: Nursery) -> None:
        """Wait for a cluster, and train in it, and in those that go on from it, to the end."""
        name, address = self._local.name, self._local.endpoint.address
        fields = {**vars(self._capacity), "saves": self._member.saving is not None, "task": self._task}
        record = NodeRecord(name, address, registration.incarnation, **fields)
        await self.exchange.publish(registration)
        await registration.put(record)
        self._say(f"{name}: has joined")
        outcome, is_done = None, False
        while not is_done:
            assigned = self.view.wait_for(partial(self._assignment, record))
            generation, place = await beside(assigned, self._print_waits())
            try:
                async with self.view.while_holds(partial(self._is_intact, generation, place.cluster)):
                    outcome = await self._train(registration, generation, place, outcome, closing_tasks)
                    is_done = self.view.is_done(generation)
                    if not (is_done or self._assignment(record)):
                        raise NoLongerValid("others went on without it")
            except (TransportError, NoLongerValid) as error:
                if isinstance(error, TransportError):
                    await self._wait_until_missing(generation, place)
                missing_nodes = self.view.missing(generation)
                departures = f"{', '.join(missing_nodes)} left: " if missing_nodes else ""
                self._say(f"{name}: its cluster ended ({departures}{error})")
                clear_frames(error.__traceback__)  # a world keeps its error, and with the frames the stage
                return
        if outcome is not None and outcome.state is not None:
            self.exchange.keep(generation, outcome.state.tensors)
        self._say(f"{name}: cluster {place.cluster} has trained its last step{self._peak_text}")

    async def _print_waits(self) -> None:
        """Print what this node waits for, as `train` writes it, whenever that changes."""
        printed = ""
        while True:
            await self.view.wait_for(partial(self._waits_changed, printed))
            if printed := self.view.wait_text:
                self._say(f"{self._local.name}: waits {printable(printed, but='')}")

    def _waits_changed(self, printed: str) -> bool:
        return self.view.wait_text != printed

    @property
    def _peak_text(self) -> str:
        """The most memory that this process took, beside what it was to take."""
        grown = self._memory.grown if self._memory else None
        if grown is None:
            return ""
        return f"; memory grew by at most {grown / 2**20:,.0f} MiB, of {self._capacity.ram / 2**20:,.0f} MiB offered"

    def _is_intact(self, generation: Generation, cluster: int) -> bool:
        """Whether no node of this cluster has left; always true when all have trained their last step."""
        return self.view.is_done(generation) or cluster in self.view.intact(generation)

    async def _wait_until_missing(self, generation: Generation, place: ClusterPlace) -> None:
        """Wait until the directory shows which nodes of lost clusters have left, at most for a lease.

        A dead node is listed until its lease ends. This node stays listed as long, so that `train` names the dead node.
        It does not wait if it has a backup: the backup goes on, and writes only after this node has left.
        """

        def is_known() -> bool:
            names = [node.name for node in self.view.remaining_at(generation, place)]
            backup_goes_on = len(names) > 1 and names[0] == self._local.name
            return backup_goes_on or bool(self.view.missing(generation))

        with suppress(TimeoutError):
            await with_timeout(self._local.clock, self._lease_s, self.view.wait_for(is_known))

    def _assignment(self, record: NodeRecord) -> tuple[Generation, ClusterPlace] | None:
        """The generation that this node is in, and its place there; None: it is in none."""
        generation = self.view.generation
        place = generation.place_of(record) if generation else None
        return (generation, place) if generation and place else None

    async def _train(
        self,
        registration: Registration,
        generation: Generation,
        place: ClusterPlace,
        previous_outcome: ClusterOutcome | None,
        closing_tasks: Nursery,
    ) -> ClusterOutcome:
        """Train in this generation until it is done, or another one follows with this node."""
        self.exchange.keep(generation, {})
        self._say_place(generation, place)
        self._describe_to_executor(generation, place)
        records = ClusterRecords(self.view, registration, generation, place.cluster, self._local.clock)
        async with Nursery() as tasks:
            tasks.create_task(records.write_steps())
            self._member.worlds.lose(node.address for node in self.view.departed(generation))
            training = self._member.train(
                generation,
                place,
                on_step=records.report if place.stage == 0 else lambda report: None,
                decisions=records,
                start=StageStart(previous_outcome.state if previous_outcome else None, self.exchange),
                closing_tasks=closing_tasks,
            )
            with self._member.executor.doing("training"):
                outcome = await beside(training, self._lose_departed(generation))
            records.end(outcome.digest)
        await self._wait_until_followed(generation, place, records, outcome)
        return outcome

    def _say_place(self, generation: Generation, place: ClusterPlace) -> None:
        stage_place = generation.stage_place(place)
        alive = f"at most {stage_place.alive} microbatch{'es' * (stage_place.alive > 1)} alive"
        layers = f"layers {stage_place.first}-{stage_place.end - 1}, {alive}"
        wait = f"; it waits for {AWAITED_STATE}" if generation.is_late(place.cluster) else ""
        self._say(f"{self._local.name}: cluster {place.cluster}, stage {place.stage}: {layers}{wait}")

    def _describe_to_executor(self, generation: Generation, place: ClusterPlace) -> None:
        """Give the executor what it names where memory runs out: the node, and the bytes planned for its place."""
        name, places = self._local.name, self._planned_places
        count = partial(places.bytes_of, generation, place, name) if places else None
        self._member.executor.configure(name=name, planned_memory=count)

    async def _wait_until_followed(
        self, generation: Generation, place: ClusterPlace, records: ClusterRecords, outcome: ClusterOutcome
    ) -> None:
        """Wait until all clusters are done, or another generation follows.

        For that one the node of the first stage writes what its cluster had done.
        """
        await self.view.wait_for(lambda: self.view.is_done(generation) or records.ends())
        if place.stage == 0 and not self.view.is_done(generation):
            await records.stop(outcome.stop)
        await self.view.wait_for(lambda: self.view.is_done(generation) or self.view.generation != generation)

    async def _lose_departed(self, generation: Generation) -> None:
        """Lose the holders that leave, in the worlds of this generation, also the silent ones."""
        while True:
            departed = self.view.departed(generation)
            self._member.worlds.lose(node.address for node in departed)
            await self.view.wait_for(partial(self._departed_changed, generation, departed))

    def _departed_changed(self, generation: Generation, departed: list[Holder]) -> bool:
        return self.view.departed(generation) != departed

    async def _raise_when_replaced(self) -> None:
        await self.view.wait_for_changed_task(self._task)
        raise TaskReplaced

    async def _raise_when_failed(self) -> None:
        await asyncio.shield(self._local.endpoint.failed)
