"""One peer's replica of one stage: what trainers and the leader request of it, and the optimizer steps that it applies.

A step is applied when the directory's head says that it is committed, with the total that was summed for it, and not
otherwise. Each kind of request has a module of its own.
"""

from collections.abc import Mapping, Sequence, Set

from pipelined.actors.executor import Device
from pipelined.state.donor import Donor, copied
from pipelined.state.steps import AppliedStep
from pipelined.swarm.config import Rules
from pipelined.swarm.peer.handover import Succession
from pipelined.swarm.peer.passes import Passes
from pipelined.swarm.peer.rounds import RoundService
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol import MOST
from pipelined.swarm.records import Head, SavedStage, Version
from pipelined.swarm.stages.codec import Coding
from pipelined.swarm.stages.stage import SwarmStage
from transports import Block
from transports.rpc import Endpoint, Request, Response


class Replica:
    """One stage at one peer.

    Args:
        name: of the peer.
        index: which stage.
        version: of its parameters; its `step` is the next that they are to take.
        basis: names what they follow from; None: the version's lineage.

    Attributes:
        passes, rounds, succession, donor: what is asked of it.
        load: what waits for its device.
    """

    def __init__(
        self,
        name: str,
        index: int,
        stage: SwarmStage,
        version: Version,
        rules: Rules,
        device: Device,
        endpoint: Endpoint,
        coding: Coding,
        basis: str | None = None,
    ):
        self.name, self.index, self.stage, self._rules = name, index, stage, rules
        basis = version.lineage if basis is None else basis
        self._state = StageState(name, index, stage, version, basis, rules, device)
        self.passes = Passes(self._state, coding)
        self.load = self.passes.load
        self.rounds = RoundService(self._state, self.load, endpoint, Coding(rules.sums_codec, coding.threads))
        self.succession, self.donor = Succession(self._state), Donor(stage, device, coding.beside)

    @property
    def step(self) -> int:
        """The next step to be taken."""
        return self._state.step

    @property
    def version(self) -> Version:
        """The version of its parameters."""
        return self._state.version

    @property
    def counted(self) -> Set[int]:
        """The microbatches of the present step in this peer's sum."""
        return self._state.ledger.losses.keys()

    async def manifest(self, request: Request) -> Response:
        """Which state a joiner can have from here."""
        return await self.donor.manifest(request, lambda: self.version)

    def as_saved(self) -> SavedStage:
        """The entry that a save of its present state has."""
        return SavedStage(self.step, self.index, self._rules.stages, self.version.lineage)

    async def copy(self) -> Mapping[str, Block]:
        """Its state as it is between two pieces of work."""
        return (await self._state.device.run("copy", lambda: copied(self.stage.state())))[0]

    async def start_afresh(self) -> None:
        """Forget what was counted, and count no more: under another incarnation nobody counts on it."""
        self.rounds.abort("its peer begins another life")
        self._state.ledger.frozen = self._state.next_ledger.frozen = MOST, 0
        await self._state.drop(next_too=True)

    async def follow(self, head: Head) -> bool:
        """Take the step that stands now, if it is not taken yet; whether this replica is where the swarm is.

        False means that it was not a member of what was decided: its state is of no use any more.
        """
        if head.version == self.version:
            self._state.basis = head.basis
            return True
        total = self.rounds.total(head.round)
        here = head.step == self.step + 1 and head.was_taken_by(self.name, self.index)
        if not here or total is None:
            return False

        await self._take(AppliedStep(self.version, head.version, total, head.scale), head.basis)
        return True

    async def apply_missed(self, steps: Sequence[AppliedStep]) -> None:
        """Take steps that were taken without this peer, which goes on serving; what it counted of them is of no use."""
        self.rounds.abort("the step stands without this peer")
        for step in steps:
            await self._take(step, self.version.lineage if self._rules.delayed else step.after.lineage)

    async def _take(self, step: AppliedStep, basis: str) -> None:
        before = self.version

        def take() -> None:
            state = self._state
            if state.version != before:  # by who was cancelled meanwhile
                return
            self.stage.apply(state.step, step.total, step.scale)
            self.donor.took(before, step.after, step.total, step.scale)
            if not self._rules.delayed:
                self.stage.clear()
            state.go_on(step.after, basis)
            self.rounds.forget()

        await self._state.device.run("step", take)
        self._state.changed.notify_all()

    def give_up(self, why: str) -> None:
        """This replica is no more: whoever waits for it is refused."""
        self._state.given_up = True
        self.rounds.abort(why)
        self._state.changed.notify_all()
