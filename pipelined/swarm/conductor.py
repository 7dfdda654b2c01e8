"""Leading the swarm from step to step, by whichever trainer holds that key in the directory.

A step is taken in two phases. First every peer of every stage says which microbatches its sum holds, until together
these are exactly the batch at each stage; then each stage sums among its peers, and when every one of them holds the
total, the directory's head is moved: that, and nothing else, is the commit. Who led before and does not know yet that
it does no longer cannot move it, for the transaction expects the conductor's own key as it was. All stages take a step
or none. A conductor that dies leaves nothing undone: peers keep their sums, and the next one asks what they have.
"""

import asyncio
import hashlib
import math
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from pipelined.clock import Clock
from pipelined.errors import UsageError
from pipelined.nursery import Nursery
from pipelined.swarm.asking import Asking
from pipelined.swarm.attempt import Attempt, Failed
from pipelined.swarm.bell import Bell
from pipelined.swarm.board import Board
from pipelined.swarm.cover import Cover
from pipelined.swarm.directory import Conflict, CutOff
from pipelined.swarm.going_back import GoingBack
from pipelined.swarm.membership import RETRY_S, Ended, Roster
from pipelined.swarm.notes import field, read_done, told, whole
from pipelined.swarm.records import CONDUCTOR, HEAD, Conductor, Head, Mark
from pipelined.swarm.rules import Rules
from pipelined.swarm.standing import Standing
from transports.endpoints import Answer, Question, Refusal

Moves = Callable[[Sequence[Mapping[str, float | None]]], Mapping[str, int]]
"""By stage, each peer's load, None of those on their way there; who is to go to which stage."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.01, 1.0


class Deposed(Exception):
    """Somebody else leads."""


class OtherModel(UsageError):
    """The swarm trains something else than this process would."""

    def __init__(self, ours: str, theirs: str):
        super().__init__(f"this swarm has another model, code or tokenizer (here: {ours}, there: {theirs}); use theirs")


class Leadership:
    """One trainer's part in leading: it does so whenever nobody else does.

    Args:
        name, address: of the trainer.
        moves: decides who changes stage, once in `rules.rebalance_s`.
        back: knows when all must go back to what was saved.
    """

    def __init__(
        self,
        name: str,
        address: str,
        roster: Roster,
        asking: Asking,
        rules: Rules,
        clock: Clock,
        moves: Moves,
        back: GoingBack,
    ):
        self._back, self._revision = back, 0
        self._me, self._roster, self._asking = Conductor(name, address), roster, asking
        self._rules, self._clock, self._moves = rules, clock, moves
        self._board: Board | None = None
        self._term = self._attempts = 0
        self._balanced, self._moved = clock.now(), set[str]()
        self._changed = Bell()

    @property
    def left(self) -> int | None:
        """Microbatches that the step under way still misses; None where another leads."""
        return self._board.left if self._board else None

    async def run(self, standing: Standing) -> None:
        """Lead whenever nobody else does, until cancelled.

        That this one leads may be news to it: it had asked to, and was cut off before it heard the answer.
        """
        directory, roster = self._roster.directory, self._roster
        while True:
            await roster.wait_for(lambda: roster.conductor in (None, self._me))
            try:
                self._term = await directory.transact(
                    {CONDUCTOR: roster.conductor_revision}, {CONDUCTOR: self._me.pack()}, lease=standing.lease
                )
            except (Conflict, CutOff):
                await self._clock.sleep(RETRY_S)
                continue
            await roster.wait_for(lambda: roster.revision >= self._term)
            try:
                await self._lead()
            except Deposed:
                continue
            finally:
                self._board = None
                self._changed.ring()

    async def work(self, question: Question) -> Answer:
        """A trainer's slot says what it has done and gets its next microbatch, as soon as there is one.

        Raises:
            Refusal: "not leading"; "stranger": it is no member under this incarnation.
        """
        trainer = self._roster.trainers.get(str(field(question.note, "name")))
        proved = question.asker.address, question.note.get("incarnation")
        if trainer is None or (trainer.address, trainer.incarnation) != proved:
            raise Refusal("stranger", address=question.asker.address)
        if trainer.model != self._rules.digest:
            raise Refusal("another model", here=self._rules.digest, there=trainer.model)
        slot = f"{trainer.name}/{whole(question.note, 'slot')}"
        self._take_down(slot, question.note)
        while True:
            if self._board is None or self._roster.head is None:
                raise Refusal("not leading")
            if not self._roster.is_here(trainer):  # while it waited: what it were given now nobody would take back
                raise Refusal("stranger", address=question.asker.address)
            given = self._board.take(slot)
            if given is not None:
                note = {
                    "step": self._step,
                    "index": given.index,
                    "stages": list(given.stages),
                    "lineage": self._lineage,
                    "revision": self._revision,
                }
                return Answer(note=note)
            await self._changed.wait()

    def _take_down(self, slot: str, note: Mapping[str, Any]) -> None:
        if self._board is None:
            return
        done = read_done(note.get("done"), self._rules.stages)
        if done is not None and done[:2] == (self._step, self._revision):
            self._board.done(slot, *done[2:])
        self._board.give_back(lambda held: held == slot)
        self._changed.ring()

    async def _lead(self) -> None:
        """Take step after step.

        Raises:
            Deposed: somebody else leads.
        """
        if self._roster.head is None:
            await self._decide(await self._while_leading(self._first()), 0)
        if self._roster.head.model != self._rules.digest:
            raise OtherModel(self._rules.digest, self._roster.head.model)
        begun = True  # by who led before, perhaps
        while True:
            head, revision = self._roster.head, self._roster.head_revision
            self._step, self._lineage, self._revision = head.step, head.lineage, revision
            self._board = Board(self._rules.batch, self._rules.stages)
            self._changed.ring()
            after = await self._while_leading(self._led(head, begun))
            await self._decide(after, revision)
            begun = after.step != head.step + 1

    async def _while_leading(self, work: Coroutine[Any, Any, Head]) -> Head:
        """Raises: Deposed: somebody else leads."""
        try:
            async with self._roster.as_long_as(lambda: self._roster.conductor_revision == self._term):
                return await work
        except Ended as error:
            raise Deposed from error
        finally:
            work.close()  # where it was never begun

    async def _first(self) -> Head:
        """Where a swarm begins: before the first step, or where a former one was saved."""
        return self._head_at(await self._back.needed()) if self._back.resume else self._head_at(None)

    async def _led(self, head: Head, begun: bool) -> Head:
        """`_taken`, while the board is kept true to who is there; or, where that cannot be, where all go back to."""
        async with Nursery() as tasks:
            watching = tasks.create_task(self._watch())
            ways = [tasks.create_task(self._taken(head, begun)), tasks.create_task(self._back.needed())]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, *ways):
                task.cancel()
        taken, back = ways
        return self._head_at(back.result()) if taken.cancelled() else taken.result()

    def _head_at(self, mark: Mark | None) -> Head:
        """The head that lets all begin there; None: before the first step."""
        if mark is None:
            return Head(self._rules.stages, self._rules.digest)
        self._attempts += 1
        name = told((self._term, self._attempts))
        return Head(self._rules.stages, self._rules.digest, mark.step, name, lineage=mark.lineage)

    async def _watch(self) -> None:
        """Put back on the board what those had who left."""
        roster = self._roster
        while True:
            trainers, peers = list(roster.trainers.values()), list(roster.peers.values())
            await roster.next_change()
            gone = {each.name for each in trainers if not roster.is_here(each)}
            self._board.give_back(lambda slot, gone=gone: slot.rpartition("/")[0] in gone)
            for peer in peers:
                if not roster.is_here(peer):
                    self._board.forget(peer.name, peer.heir)
            self._changed.ring()

    async def _taken(self, head: Head, begun: bool) -> Head:
        """Try until every stage holds the total of exactly one batch; the head that says so.

        Args:
            begun: peers may have counted already, and count no more for who led before: ask them first.
        """
        pause = FIRST_PAUSE_S
        if not begun:
            await self._until(lambda: self._board.complete)
        while True:
            members = [self._roster.holding(stage) for stage in range(self._rules.stages)]
            self._attempts += 1
            attempt = Attempt((self._term, self._attempts), head.step, self._rules.batch, members, self._asking)
            covers = await attempt.prepare()
            try:
                if any(covered.missing for covered in covers):
                    raise Failed("microbatches are missing")
                squares = await attempt.reduce(covers)
            except Failed:
                self._board.settle([covered.missing for covered in covers])
                await self._resumed(attempt, covers, pause)
                pause = min(2 * pause, MOST_PAUSE_S)
                continue
            return self._head_after(head, attempt, covers, squares)

    async def _resumed(self, attempt: Attempt, covers: Sequence[Cover], pause: float) -> None:
        """Have everyone count again until nothing is missing; who did not hear that it may is told again meanwhile."""
        async with Nursery() as tasks:
            telling = tasks.create_task(attempt.resume(covers))
            self._changed.ring()
            await self._clock.sleep(pause)
            await self._until(lambda: self._board.complete)
            telling.cancel()

    def _head_after(self, head: Head, attempt: Attempt, covers: Sequence[Cover], squares: Sequence[float]) -> Head:
        norm = math.sqrt(math.fsum(squares))
        scale = self._rules.scale(norm)
        losses = [loss for name in covers[-1].keep for loss in attempt.told[-1][name].losses.values()]
        return Head(
            stages=head.stages,
            model=head.model,
            step=head.step + 1,
            round=told(attempt.name),
            members=attempt.members(),
            scale=scale,
            loss=math.fsum(losses) / self._rules.samples,
            norm=norm / self._rules.samples,
            moves=self._rebalanced(attempt),
            lineage=_lineage_after(head, attempt, scale),
        )

    def _rebalanced(self, attempt: Attempt) -> dict[str, int]:
        every, now = self._rules.rebalance_s, self._clock.now()
        if not every or now - self._balanced < every:
            return {}
        self._balanced, roster = now, self._roster
        coming = [{peer.name: None for peer in roster.joining(stage)} for stage in range(self._rules.stages)]
        loads = [{name: said.load for name, said in each.items()} for each in attempt.told]
        moves = self._moves([there | here for there, here in zip(coming, loads, strict=True)])
        moved, self._moved = self._moved, set(moves)
        return {name: stage for name, stage in moves.items() if name not in moved}  # who has just come stays a while

    async def _decide(self, head: Head, revision: int) -> None:
        """Move the head, and wait until this process sees it.

        Raises:
            Deposed: it was moved by another, or somebody else leads.
        """
        directory, roster = self._roster.directory, self._roster
        while True:
            try:
                await directory.transact({HEAD: revision, CONDUCTOR: self._term}, {HEAD: head.pack()})
                break
            except Conflict as error:
                found = error.found.get(HEAD)
                if found is None or found.value != head.pack():
                    raise Deposed from error
                break  # it had happened before the directory was cut off
            except CutOff:
                await self._clock.sleep(RETRY_S)
        await roster.wait_for(lambda: roster.head is not None and roster.head_revision > revision)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()


def _lineage_after(head: Head, attempt: Attempt, scale: float) -> str:
    """Names all that parameters follow from: where they were, every stage's total, and the scale."""
    said = repr([head.lineage, attempt.digests, scale])
    run = head.point.run or secrets.token_hex(6)
    return f"{run}-{hashlib.blake2b(said.encode(), digest_size=12).hexdigest()}"
