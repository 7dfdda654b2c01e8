"""The records of a cluster that a node writes to the directory: its steps, rounds of averaging, and where it stopped.

Each write holds only while this incarnation is listed and its generation is the last. So a node that was stopped, and
runs again after its cluster ended, changes nothing. A round is written only before its generation ends: a node that
sees that it ends has seen all of its rounds.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import first_of, with_timeout
from pipelined.membership.directory import Conflict
from pipelined.membership.record import Record
from pipelined.membership.registration import Registration
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.records.generation import ENDING, GENERATION, Generation
from pipelined.ravnest.records.progress import PROGRESS, ROUND, STOPPED, ClusterProgress, ClusterStop, RoundEnd
from pipelined.ravnest.records.view import RavnestView
from pipelined.training.segments.step_report import StepReport
from transports import TransportError

PATIENCE_LEASES = 2.0
"""Leases after which a node that is lost to a round must be missing in the directory."""
T = TypeVar("T")


class ClusterRecords(RoundDecisions):
    """What one node writes of its cluster; the decisions on rounds are in the directory.

    Args:
        registration: of the node.
        generation: the last one of this view.
        cluster: the number of this node's own. A backup of its first node writes what is still missing.
        clock: of the node.
    """

    def __init__(
        self, view: RavnestView, registration: Registration, generation: Generation, cluster: int, clock: Clock
    ):
        self._view = view
        self._generation = generation
        self._cluster = cluster
        self._clock = clock
        self._own_revisions = {GENERATION: view.revision_of(GENERATION), registration.key: registration.revision}
        self._ending = view.revision_of(ENDING)
        self._patience_s = PATIENCE_LEASES * registration.lease.seconds
        self._steps = asyncio.Queue[ClusterProgress | None]()
        incarnation = registration.incarnation
        self._own_holder = next(
            (holder for holder in generation.all_holders if holder.incarnation == incarnation), None
        )
        start = max(0, generation.start.step - 1)
        self._last_progress = ClusterProgress(generation.number, start, loss=0.0, staleness=[], seconds=0.0, digest="")

    def report(self, report: StepReport) -> None:
        """Write a completed step, when it is its turn."""
        step = self._generation.step_of(self._cluster, report.step)
        delays = list(report.staleness)
        self._last_progress = ClusterProgress(
            self._generation.number, step, report.loss, staleness=delays, seconds=report.step_s, digest=""
        )
        self._steps.put_nowait(self._last_progress)

    def end(self, digest: str) -> None:
        """Write that the last step is trained; "": the cluster stopped before. `write_steps` returns afterwards."""
        if digest:
            self._steps.put_nowait(replace(self._last_progress, digest=digest))
        self._steps.put_nowait(None)

    async def write_steps(self) -> None:
        """Write the steps of the cluster, in order, up to the end. Raises NoLongerValid: as `commit`."""
        while progress := await self._steps.get():
            await self._view.wait_for(partial(self._is_due, progress))
            if not self._is_past(progress):
                await self._write({f"{PROGRESS}{self._cluster}": progress})

    async def stop(self, stop: ClusterStop) -> None:
        """Write what this cluster had done, for others to go on; a backup writes it if no other node has.

        Others may go on once one node has written it. Raises NoLongerValid: as `commit`.
        """
        await self._view.wait_for(
            lambda: self._is_first or self._has_stopped or self._view.generation != self._generation
        )
        if not self._has_stopped:
            await self._write({f"{STOPPED}{self._cluster}": stop})

    async def commit(self, round_: int) -> None:
        """See `RoundDecisions`. Raises NoLongerValid: this node has left, or a newer generation was formed."""
        if not self._round_end(round_):
            await self._write_round(number=round_)

    async def refuse(self, round_: int, cluster: int, fact: str) -> None:
        """See `RoundDecisions`. Raises NoLongerValid: as `commit`."""
        if not self._round_end(round_):
            refused = [*self._view.round_of(self._generation).refused, [round_, cluster]]
            await self._write_round(refused=refused, fact=fact)

    def sender_of(self, round_: int) -> int | None:
        """See `RoundDecisions`."""
        return self._view.refused(self._generation).get(round_)

    def ends(self) -> bool:
        """See `RoundDecisions`."""
        return self._view.ends(self._generation)

    async def wait_for_end(self) -> int:
        """See `RoundDecisions`."""
        await self._view.wait_for(self.ends)
        return self._view.rounds_of(self._generation)

    async def attempt(self, work: Coroutine[Any, Any, T]) -> T | None:
        """See `RoundDecisions`. Raises TransportError: as `complete`."""
        return await self._work_until(self.ends, work, self.ends)

    async def complete(self, round_: int, work: Coroutine[Any, Any, None], has_average: Callable[[], bool]) -> RoundEnd:
        """See `RoundDecisions`.

        Raises:
            TransportError: the work failed, and no node is missing in the directory: two nodes cannot reach each other.
                The first of several such clusters gives the others as long again to leave. Or the round is committed,
                and this node has not the average: the other node of its place goes on.
        """

        def is_decided() -> bool:
            end = self._round_end(round_)
            return has_average() if end is RoundEnd.COMMITTED else end is not None

        await self._work_until(is_decided, work, lambda: self._round_end(round_) is not None)
        end = await self._view.wait_for(lambda: self._round_end(round_))
        if end is RoundEnd.COMMITTED and not has_average():
            raise TransportError(f"round {round_} is committed, and this node has not the average")
        return end

    def _round_end(self, round_: int) -> RoundEnd | None:
        """How a round has ended; None: it has not."""
        if self.sender_of(round_) is not None:
            return RoundEnd.REFUSED
        if self._view.rounds_of(self._generation) >= round_:
            return RoundEnd.COMMITTED
        return RoundEnd.GENERATION_ENDS if self.ends() else None

    async def _work_until(
        self, is_decided: Callable[[], bool], work: Coroutine[Any, Any, T], is_over: Callable[[], bool]
    ) -> T | None:
        """The result of the work; None: it is decided without it, or over after it failed."""

        async def wait(condition: Callable[[], bool]) -> None:
            await self._view.wait_for(condition)

        def is_explained() -> bool:
            return is_over() or bool(self._view.missing(self._generation))

        try:
            return await first_of(work, wait(is_decided))
        except TransportError as error:
            is_late = await self._outlasts_patience(wait(is_explained))
            if is_late and self._cluster == 0 and not self._shares_place:  # others leave before it
                is_late = await self._outlasts_patience(wait(is_explained))
            if is_late:
                raise error from None
        await wait(is_over)
        return None

    async def _outlasts_patience(self, wait: Coroutine[Any, Any, None]) -> bool:
        """Whether this takes longer than a node that is lost is listed."""
        try:
            await with_timeout(self._clock, self._patience_s, wait)
        except TimeoutError:
            return True
        return False

    @property
    def _shares_place(self) -> bool:
        """Whether another node holds this node's place, too."""
        place = self._own_holder and self._generation.place_of(self._own_holder)
        return place is not None and len(self._view.remaining_at(self._generation, place)) > 1

    @property
    def _is_first(self) -> bool:
        """Whether this node writes for its cluster: the nodes that write before it have left."""
        return self._own_holder in self._view.remaining_at(self._generation, ClusterPlace(self._cluster, 0))[:1]

    @property
    def _has_stopped(self) -> bool:
        """Whether the directory has what this cluster had done."""
        return self._cluster in self._view.stops(self._generation)

    def _is_due(self, progress: ClusterProgress) -> bool:
        """Whether the nodes that write before this one have written a step, or have left."""
        return self._is_first or self._is_past(progress)

    def _is_past(self, progress: ClusterProgress) -> bool:
        """Whether this step, or a later one of the cluster, is written."""
        written_progress = self._view.progress.get(f"{self._cluster}")
        if written_progress is None or written_progress.generation != self._generation.number:
            return False
        if written_progress.digest or progress.digest:
            return bool(written_progress.digest)
        step = self._generation.own_step(self._cluster, progress.step)
        written_step = self._generation.own_step(self._cluster, written_progress.step)
        return step is not None and written_step is not None and written_step >= step

    async def _write_round(self, **fields: Any) -> None:
        record = replace(self._view.round_of(self._generation), **fields)
        await self._write({ROUND: record}, **{ENDING: self._ending, ROUND: self._view.revision_of(ROUND)})

    async def _write(self, records: Mapping[str, Record], **revisions: int) -> None:
        try:
            packed_records = {key: record.pack() for key, record in records.items()}
            await self._view.directory.transact({**self._own_revisions, **revisions}, packed_records)
        except Conflict as error:
            current_revisions = {key: entry.revision if entry else 0 for key, entry in error.entries.items()}
            if any(current_revisions[key] != revision for key, revision in self._own_revisions.items()):
                raise NoLongerValid("this node has left its cluster") from error
