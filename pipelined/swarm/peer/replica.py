"""One peer's replica of one stage: the requests that it serves, and the optimizer steps that it applies.

A step is applied only after the directory's head commits it, with the total that was summed for it.
"""

from collections.abc import AsyncIterator, Mapping, Set

from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.fields import MAX_INTEGER
from pipelined.membership.view import NoLongerValid
from pipelined.state.stages.applied_steps import AppliedStep, fetch_steps
from pipelined.state.stages.chunks import TransferError
from pipelined.state.stages.donor import Donor, copy_state
from pipelined.state.stages.fetch import by_preference
from pipelined.state.stages.messages import StateManifest
from pipelined.state.stages.versions import SavedStage, Version
from pipelined.swarm.peer.handover import Handover
from pipelined.swarm.peer.passes import Passes
from pipelined.swarm.peer.rounds import RoundService
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.rounds import RoundName
from pipelined.swarm.protocol.status import StageReport
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.stages.swarm_stage import Coding
from transports import Block
from transports.rpc import Endpoint, Party, Rejected


class Replica:
    """One stage at one peer.

    Args:
        state: of the stage, at the version that it has.

    Attributes:
        passes, rounds, handover, donor: they serve its requests.
        load: the work that waits for its device.
    """

    def __init__(self, state: StageState, endpoint: Endpoint, coding: Coding):
        self.name, self.index, self.stage, self._rules = state.name, state.index, state.stage, state.rules
        self._state = state
        self.passes = Passes(self._state, coding)
        self.load = state.load
        self.rounds = RoundService(self._state, endpoint, Coding(state.rules.sums_codec, coding.threads))
        self.handover = Handover(self._state)
        self.donor = Donor(state.stage, state.executor, coding.in_background)

    @property
    def step(self) -> int:
        """The next step to apply."""
        return self._state.step

    @property
    def version(self) -> Version:
        return self._state.version

    @property
    def counted(self) -> Set[int]:
        """The microbatches of the current step in this peer's sum."""
        return self._state.ledger.losses.keys()

    def report(self) -> StageReport:
        """What this replica does, for status."""
        counts = self.passes.counts
        return StageReport(self.step, len(self.counted), self.load.waiting, counts["forwards"], counts["backwards"])

    async def manifest(self, sender: Party) -> StateManifest:
        """The manifest of the state that a joining peer can fetch here."""
        return await self.donor.manifest(sender, lambda: self.version)

    def as_saved(self) -> SavedStage:
        """The entry of a save of its present state."""
        return SavedStage(self.step, self.index, self._rules.stages, self.version.lineage)

    async def copy(self) -> Mapping[str, Block]:
        """A copy of its state, made between two pieces of work."""
        return (await self._state.executor.run("copy", lambda: copy_state(self.stage.state())))[0]

    async def stop_counting(self) -> None:
        """Discard what was counted, and stop counting: no leader relies on the counts of a former incarnation."""
        self.rounds.abort("this peer rejoined under another incarnation")
        self._state.ledger.frozen = self._state.next_ledger.frozen = RoundName(MAX_INTEGER, 0)
        await self._state.discard_counts(also_next=True)

    async def follow(self, head: Head) -> bool:
        """Apply the committed step, if it is not applied yet. Returns whether this replica is at the head's version.

        False means that this peer had no part in the committed step, so that its state is out of date.
        """
        if head.version == self.version:
            self._state.parameter_version = head.parameter_version
            return True
        total = self.rounds.total(head.round)
        took_part = head.step == self.step + (not head.repeats_step) and head.had_member(self.name, self.index)
        if not took_part or total is None:
            return False

        await self._apply(AppliedStep(self.version, head.version, total, head.scale), head.parameter_version)
        return True

    async def apply_missed(self, step: AppliedStep) -> None:
        """Apply a step that was committed without this peer, which continues to serve; discard its counts of it."""
        self.rounds.abort("the step was committed without this peer")
        await self._apply(step, self.version.lineage if self._rules.delayed else step.version_after.lineage)

    async def _apply(self, step: AppliedStep, parameter_version: str) -> None:
        version = self.version

        def apply() -> None:
            state = self._state
            if state.version != version:  # a cancelled call has applied it meanwhile
                return
            self.stage.apply(state.step, step.total, step.scale)
            self.donor.keep_step(version, step.version_after, step.total, step.scale)
            if not self._rules.delayed:
                self.stage.clear()
            state.advance(step.version_after, parameter_version)
            self.rounds.release_total()

        await self._state.executor.run("update", apply)
        self._state.changed.notify_all()

    def give_up(self, why: str) -> None:
        """End this replica; requests that wait for it are refused."""
        self._state.given_up = True
        self.rounds.abort(why)
        self._state.changed.notify_all()


async def catch_up(
    replica: Replica, head: Head, view: SwarmView, client: MemberClient, limit: float
) -> AsyncIterator[int]:
    """Fetch the steps up to this head from another peer of the stage, and apply them; yields the number of each new
    one. Ends early if that fails.

    The peer does not leave and join again for them: with a slow link it would be late again after each return.

    Args:
        limit: seconds after which a reply is late.
    """
    members = [peer for peer in view.peers_with(replica.index) if head.had_member(peer.name, replica.index)]
    donors = by_preference(replica.name, members)
    try:
        while replica.version != head.version and replica.step <= head.step and donors:
            for step in await fetch_steps(client, donors[0], replica.version, replica.stage.sums, limit):
                await replica.apply_missed(step)
                if step.scale:
                    yield replica.step
    except (NoLongerValid, Rejected, TransferError):
        return


def split_by_last_step(replica: Replica, head: Head, view: SwarmView) -> tuple[set[str], set[str]]:
    """Addresses of the other peers of a stage: those without a part in the last step, and those with one."""
    late, on_time = set[str](), set[str]()
    for peer in [*view.joining(replica.index), *view.peers_with(replica.index)]:
        if peer.name != replica.name:
            (on_time if head.had_member(peer.name, replica.index) else late).add(peer.address)
    return late, on_time
