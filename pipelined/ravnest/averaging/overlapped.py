"""Rounds beside training: the rings average snapshots while updates go on; then each node adds the difference.

    updates      16 ...................... 21        w ← w + (average - snapshot)
                 | snapshot                | difference
    rings        |=========================|

A difference is added right after an update, before anything uses the new version; so it needs no version of its own.
The mean of the clusters is unchanged by it. A node takes its snapshots by its own count of updates, and waits only
where the difference before is not there at the next snapshot. Imports torch.

Source: Ravnest, section 3.2; adding the difference is our own.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pipelined.actors.actor import Actor
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.averaging.rounds import Rounds
from pipelined.ravnest.records.progress import RoundEnd
from pipelined.training.segments.stage_updates import UpdateListener


class RoundListener(UpdateListener):
    """What a node does for rounds, or for saves, after its updates.

    Attributes:
        generation_ended: whether the generation ended before a round did.
    """

    generation_ended = False


@dataclass(frozen=True, eq=False)
class RunningRound:
    """A round that is under way beside training.

    Args:
        snapshot: the state at its start, flat.
        average: a second copy of that state, in which the rings compute the average.
        end: ends with the round.
    """

    number: int
    snapshot: torch.Tensor
    average: torch.Tensor
    end: asyncio.Task[RoundEnd]


@dataclass(eq=False)
class OverlappedRounds(RoundListener):
    """One node's rounds while it trains all its steps in one segment.

    Args:
        actor: the parent of the rings.
        snapshots: the updates after which they begin.
        add_after: by round the updates after which its difference is to be added; without an entry: at once.
        added: by round the updates after which its difference was added, written here; a refused round has none.
        weigh: the weight of this cluster in the next round; see `Rounds.average`.
    """

    rounds: Rounds
    actor: Actor
    snapshots: Collection[int]
    add_after: Mapping[int, int]
    added: dict[int, int]
    weigh: Callable[[], float | None]
    _running: RunningRound | None = field(default=None, init=False)

    async def after_update(self, updates: int) -> None:
        """Add the difference of the last round if it is its turn, and start the next one if that is due."""
        is_due = updates in self.snapshots
        if self._running is not None and (is_due or self._is_its_turn(updates, self._running)):
            await self.finish(updates)
        if is_due and not self.generation_ended:
            await self.start_round()

    async def start_round(self) -> None:
        """Start the next round."""
        number = self.rounds.ended_round + 1
        snapshot, average = await self.rounds.begin(copies=2)
        end = self.actor.start(self.rounds.reduce(average, self.weigh()))
        self._running = RunningRound(number, snapshot, average, end)

    async def finish(self, updates: int) -> None:
        """Add the difference of the round that runs, if one does; wait for it."""
        if self._running is not None:
            running = self._running
            end = await running.end
            self._running = None
            self.generation_ended = end is RoundEnd.GENERATION_ENDS
            if end is RoundEnd.COMMITTED:
                await self.rounds.add(running.average, running.snapshot)
                self.added[running.number] = updates

    def _is_its_turn(self, updates: int, running: RunningRound) -> bool:
        turn = self.add_after.get(running.number)
        return running.end.done() if turn is None else updates >= turn


@dataclass(eq=False)
class EmptyRounds(RoundListener):
    """The rounds of one cluster of which every place has a backup: nothing is averaged, and each is committed.

    From a round that is not committed both nodes of a place know, after equally many updates, that the cluster ends.

    Args:
        actor: the parent of what waits for a round.
        commits: whether this node commits the rounds.
        snapshots: by round the updates after which it starts.
        add_after: by round the updates after which a node waits for it.
    """

    decisions: RoundDecisions
    actor: Actor
    commits: bool
    snapshots: Sequence[int]
    add_after: Mapping[int, int]
    _committed_rounds: int = field(default=0, init=False)
    _running: asyncio.Task[bool] | None = field(default=None, init=False)

    async def after_update(self, updates: int) -> None:
        """Wait for the last round if it is its turn, and start the next one if that is due."""
        if updates >= self.add_after.get(self._committed_rounds + 1, updates + 1):
            await self.finish()
        if not self.generation_ended and updates in self.snapshots[self._committed_rounds : self._committed_rounds + 1]:
            self._running = self.actor.start(self._complete(self._committed_rounds + 1))

    async def finish(self) -> None:
        """Wait for the round that runs, if one does."""
        if self._running is not None:
            self.generation_ended, self._running = not await self._running, None
            self._committed_rounds += not self.generation_ended

    async def _complete(self, round_: int) -> bool:
        return await self.decisions.complete(round_, self._commit(round_), lambda: True) is RoundEnd.COMMITTED

    async def _commit(self, round_: int) -> None:
        if self.commits:
            await self.decisions.commit(round_)
