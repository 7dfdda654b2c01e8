"""One stage at one peer: computes what trainers ask, keeps what it has counted, and takes the step that was decided.

The one rule: between two steps parameters do not change, and a gradient is counted once for each microbatch and step.
What is counted is final once it was told to a conductor (`prepare` freezes it), and sums stay until a step that holds
them stands. Knows microbatches, rounds and the device; it must not know the directory or other stages.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np

from pipelined.device import Device
from pipelined.swarm.averaging import Round
from pipelined.swarm.bell import Bell
from pipelined.swarm.brought import grouped, inherited
from pipelined.swarm.coding import Coding
from pipelined.swarm.donor import Donor, copied
from pipelined.swarm.load import Load
from pipelined.swarm.notes import MOST, RoundName, check_layouts, digest_of, read_members, read_round, told, whole
from pipelined.swarm.records import Head, Mark, Point
from pipelined.swarm.rules import Rules
from pipelined.swarm.stage import Microbatch, NotFinite, SwarmStage
from transports import Block
from transports._blocks import SIZES
from transports.endpoints import Answer, Endpoint, Question, Refusal

T = TypeVar("T")
LEAST_BYTES = 1 << 14
"""What a codec may add to an array of any size."""


@dataclass
class Ledger:
    """What one step's sum at one peer holds: by index, the loss of each microbatch (0 before the last stage)."""

    losses: dict[int, float] = field(default_factory=dict)
    frozen: RoundName | None = None


class Holding:
    """A stage held.

    Args:
        name: of the peer.
        index: which stage.
        point: where its parameters are; `step`, of it, is the next that they are to take.
    """

    def __init__(
        self,
        name: str,
        index: int,
        stage: SwarmStage,
        point: Point,
        rules: Rules,
        device: Device,
        endpoint: Endpoint,
        coding: Coding,
    ):
        self.name, self.index, self.stage = name, index, stage
        self.step, self.lineage = point
        self.load, self.done = Load(device.clock), {"forwards": 0, "backwards": 0}
        self.donor = Donor(stage, device)
        self._rules, self._device, self._endpoint, self._coding = rules, device, endpoint, coding
        self._ledger, self._handing_over = Ledger(), False
        self._round: Round | None = None
        self._summed: tuple[RoundName, np.ndarray] | None = None
        self._term = (0, 0)
        self._changed = Bell()
        self._given_up = False

    @property
    def point(self) -> Point:
        """Where its parameters are."""
        return Point(self.step, self.lineage)

    @property
    def counted(self) -> Set[int]:
        """The microbatches of the present step in this peer's sum."""
        return self._ledger.losses.keys()

    async def forward(self, question: Question) -> Answer:
        """The outputs of one microbatch.

        Raises:
            Refusal: "stale", "behind" (both with this peer's step), "malformed", or "not finite", its outcome.
        """
        which = await self._which(question)
        (inputs,) = await self._inputs(question, 1)
        outputs = await self._compute("forward", which, lambda: self.stage.forward(which, inputs))
        blocks, note = await self._coding.pack(outputs, f"outputs of microbatch {which.index}")
        return Answer(blocks, {"codec": note})

    async def backward(self, question: Question) -> Answer:
        """The gradients of one microbatch's inputs; the parameters' are counted, unless they were before.

        Returns: with the note `counted`, whether this peer's sum holds it now, and `loss`.
        Raises:
            Refusal: as `forward`.
        """
        which = await self._which(question)
        inputs, given = await self._inputs(question, 2)
        asked = question.note.get("count") is True

        def work() -> tuple[Any, bool]:
            ledger = self._ledger
            count = asked and ledger.frozen is None and which.index not in ledger.losses
            passed = self.stage.backward(which, inputs, given, count)
            if count:
                ledger.losses[which.index] = passed.loss or 0.0
            return passed, which.index in ledger.losses

        passed, counted = await self._compute("backward", which, work)
        blocks, note = await self._coding.pack(passed.gradients, f"gradients of microbatch {which.index}")
        return Answer(blocks, {"codec": note, "counted": counted, "loss": passed.loss})

    async def prepare(self, question: Question) -> Answer:
        """Count nothing more, and say what is counted: indices and their losses.

        Raises:
            Refusal: "stale" (another conductor leads, or the step is past), "behind".
        """
        name = self._led(question)
        await self._reached(whole(question.note, "step"))
        await self._until(lambda: not self._handing_over)
        self._abort("another round began")
        self._ledger.frozen = name
        await self._device.run("prepare", lambda: None)  # what is being counted now is in
        indices = sorted(self._ledger.losses)
        losses = [self._ledger.losses[index] for index in indices]
        return Answer((np.array(indices, np.int64), np.array(losses, np.float64)), {"load": self.load.take()})

    async def resume(self, question: Question) -> Answer:
        """Count again, after having dropped everything where the conductor says so."""
        name = self._led(question)
        self._abort("the step goes on")
        if self._ledger.frozen is not None and self._ledger.frozen <= name:
            await self._keep(question.note.get("keep") is True)
            self._ledger.frozen = None
        return Answer()

    async def reduce(self, question: Question) -> Answer:
        """Sum over the members of a round. The total is kept until a step that holds it stands, or another round.

        Returns: with the notes `square` (of the total's norm, this stage's part) and `digest`, of its bits.
        Raises:
            Refusal: "stale", "not prepared", "lost" (with the member's name), "round aborted", "not finite".
        """
        name, members = self._led(question), read_members(question.note.get("members"))
        me = [at for at, member in enumerate(members) if member.name == self.name]
        if self._ledger.frozen != name or len(me) != 1:
            raise Refusal("not prepared", round=str(name))
        await self._keep(question.note.get("keep") is True)
        self._abort("another round began")
        self._round = Round(self._endpoint, name, members, me[0], self.stage.sums, self._rules.sums_codec)
        self._changed.ring()
        total = await self._round.run()
        square, *_ = await self._device.run("square", lambda: self.stage.square(total))
        if not math.isfinite(square):
            raise Refusal("not finite", why="all gradients together")
        if self._ledger.frozen != name:
            raise Refusal("round aborted", why="another began")
        self._summed = name, total
        return Answer(note={"square": square, "digest": digest_of(total)})

    async def piece(self, question: Question) -> Answer:
        """Another member's part of a piece that this one owns; waits until this one has begun the round."""
        name = read_round(question.note.get("round"))
        await self._until(lambda: self._round is not None and self._round.name >= name)
        if self._round.name != name:
            raise Refusal("stale", round=str(name))
        return await self._round.take(question)

    async def manifest(self, question: Question) -> Answer:
        """Which state a joiner can have from here."""
        return await self.donor.manifest(lambda: self.point)

    def mark(self) -> Mark:
        """The name of its state."""
        return Mark(self.step, self.index, self._rules.stages, self.lineage)

    async def copy(self) -> Mapping[str, Block]:
        """Its state as it is between two pieces of work."""
        return (await self._device.run("copy", lambda: copied(self.stage.state())))[0]

    async def hand_over(self, give: Callable[[Sequence[Any], Mapping[str, Any]], Awaitable[None]]) -> None:
        """Let another peer have what was counted here; nothing is counted here meanwhile.

        Raises:
            Refusal: "busy", a round is under way. Else as `give`. What was counted stays here then.
        """
        if self._ledger.frozen is not None:
            raise Refusal("busy")
        self._handing_over, self._ledger.frozen = True, (MOST, 0)
        try:
            await self._device.run("hand over", lambda: None)  # what is being counted now is in
            losses = self._ledger.losses
            arrays = self.stage.sums, np.array(list(losses), np.int64), np.array(list(losses.values()), np.float64)
            await give(arrays, self.point._asdict())
            await self._keep(False)
        finally:
            self._handing_over, self._ledger.frozen = False, None
            self._changed.ring()

    async def inherit(self, question: Question) -> Answer:
        """Add the sum of a peer that leaves to this one.

        Raises:
            Refusal: "stale", "behind"; "busy": a round is under way; "overlap"; "malformed".
        """
        await self._reached_point(question)
        sums, indices, losses = inherited(question, self.stage.sums, self._rules.batch)

        def work() -> None:
            ledger = self._ledger
            if ledger.frozen is not None or self._handing_over:
                raise Refusal("busy")
            if not ledger.losses.keys().isdisjoint(indices):
                raise Refusal("overlap")
            self.stage.sums += sums
            ledger.losses.update(zip(indices, losses, strict=True))

        await self._device.run("inherit", work)
        return Answer()

    async def start_afresh(self) -> None:
        """Forget what was counted, and count no more: under another incarnation nobody counts on it."""
        self._abort("its peer begins another life")
        self._ledger.frozen = MOST, 0
        await self._keep(False)

    async def follow(self, head: Head) -> bool:
        """Take the step that stands now, if it is not taken yet; whether this holding is where the swarm is.

        False means that it was not a member of what was decided: its state is of no use any more.
        """
        if head.point == self.point:
            return True
        here = head.step == self.step + 1 and self.name in head.members[self.index]
        if not here or self._summed is None or told(self._summed[0]) != head.round:
            return False
        _, total = self._summed

        def take() -> None:
            self.stage.apply(self.step, total, head.scale)
            self.donor.took(self.point, head.point, total, head.scale)
            self.stage.clear()
            self._ledger, self._summed, (self.step, self.lineage) = Ledger(), None, head.point

        await self._device.run("step", take)
        self._changed.ring()
        return True

    def give_up(self, why: str) -> None:
        """This holding is no more: whoever waits for it is refused."""
        self._given_up = True
        self._abort(why)
        self._changed.ring()

    async def _compute(self, op: str, which: Microbatch, work: Callable[[], T]) -> T:
        def current() -> T:
            if self._given_up:
                raise Refusal("left")
            if which.step != self.step:
                raise Refusal("stale", step=self.step)
            try:
                return work()
            except NotFinite as error:
                raise Refusal("not finite", why=str(error)) from error
            except (ValueError, TypeError) as error:
                raise Refusal("malformed", why=str(error)) from error

        with self.load.one():
            result, *_ = await self._device.run(op, current)
        self.done[f"{op}s"] += 1
        return result

    async def _which(self, question: Question) -> Microbatch:
        which = Microbatch(whole(question.note, "step"), whole(question.note, "index"))
        if which.index >= self._rules.batch:
            raise Refusal("malformed", why=f"no such microbatch (index: {which.index}, batch: {self._rules.batch})")
        await self._reached_point(question)
        return which

    async def _inputs(self, question: Question, groups: int) -> list[tuple[Block, ...]]:
        """The question's arrays in their groups (inputs; gradients), decoded."""
        taken = [await self._coding.unpack(*each, self.most_bytes) for each in grouped(question, groups)]
        for blocks, wanted in zip(taken, (self.stage.expects(), self.stage.expects_given()), strict=False):
            check_layouts(blocks, wanted)
        return taken

    @property
    def most_bytes(self) -> int:
        """What one group of arrays may come to, decoded."""
        layouts = [*self.stage.expects(), *self.stage.expects_given()]
        return LEAST_BYTES + 2 * max(prod(shape) * SIZES[dtype] for dtype, shape in layouts)

    async def _reached(self, step: int) -> None:
        """Wait for the step before to stand; one ahead of that is not waited for."""
        if step == self.step + 1:
            await self._until(lambda: self.step >= step)
        if step != self.step:
            raise Refusal("stale" if step < self.step else "behind", step=self.step)

    async def _reached_point(self, question: Question) -> None:
        """The same, and in the lineage that is asked about: since the step was asked for all may have gone back."""
        await self._reached(whole(question.note, "step"))
        if question.note.get("lineage", "") != self.lineage:
            raise Refusal("stale", step=self.step)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._given_up:
                raise Refusal("left")
            await self._changed.wait()
        if self._given_up:
            raise Refusal("left")

    async def _keep(self, keep: bool) -> None:
        def drop() -> None:  # both or neither: whoever asked may be gone before the device is free
            self._ledger.losses.clear()
            self.stage.clear()

        if not keep:
            await self._device.run("clear", drop)

    def _led(self, question: Question) -> RoundName:
        """The round's name; one before the last heard of comes from who leads no more."""
        name = read_round(question.note.get("round"))
        if name < self._term:
            raise Refusal("stale", round=str(name))
        self._term = name
        return name

    def _abort(self, why: str) -> None:
        self._summed = None
        if self._round is not None:
            self._round.abort(why)
