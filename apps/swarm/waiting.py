"""What a swarm waits for, in words, and telling of it: nobody sits before a silent terminal.

The one rule: a wait is told once it has lasted for a moment, as most are shorter; and so is its end.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from apps.common.progress import EVERY_S, MOMENT_S, Progress
from pipelined.aio.nursery import Nursery
from pipelined.membership.view import MembershipView
from pipelined.swarm.records import HEAD, Head, saved_steps


def waits_for(
    head: Head | None,
    leader: object | None,
    trains: bool,
    empty: Sequence[int],
    evaluates: str = "",
    over: bool = False,
    saved: str = "",
) -> str:
    """What keeps a swarm from its next step; "": nothing.

    Args:
        leader: whoever leads; None: nobody.
        trains: whether there is a trainer.
        empty: stages that nobody serves.
        evaluates: how many microbatches the parameters where it stands are measured on before anything is decided; "":
            they are not.
        over: the last step stands, and is evaluated.
        saved: which steps were saved of which stage; see `saved_steps`.
    """
    if over:
        return ""
    if not trains:
        return "a trainer"
    if leader is None:
        return "a trainer that leads"
    if head is None:
        return "peers that have saved all stages at one step" + (f" (saved: {saved})" if saved else "")
    if empty:
        return f"a peer of stage {', '.join(map(str, empty))}"
    return f"the evaluation of step {head.step} (microbatches: {evaluates})" if evaluates else ""


def unreadable_head(why: str) -> str:
    """What a process says that finds a head which it cannot read, and that remembers no other."""
    fact = f"the directory's record 'head' cannot be read ({why})"
    return f"{fact}; waits for a trainer that remembers the step, or for one that is started with --resume"


@dataclass(frozen=True)
class WaitLog:
    """What one trainer sees its swarm wait for.

    Args:
        name: of the trainer.
        due: whether the parameters where the swarm stands are to be evaluated.
        held_out: microbatches of an evaluation.
        unscored: how many of these are left, where this trainer leads; else None.
    """

    name: str
    view: MembershipView
    due: Callable[[], bool]
    held_out: int
    unscored: Callable[[], int | None]
    say: Callable[[str], None]

    async def follow(self) -> None:
        """Tell of every wait that lasts, how far an evaluation is, and of the end, until cancelled."""
        said, progress = "", self._progress()
        while True:
            now = self._account()
            if now == said:
                await self.view.next_change(EVERY_S if now else math.inf)
                self._tell_of_scores(progress)
            elif not now or await self._lasts(now):
                self.say(f"{self.name}: {now or 'goes on'}")
                said, progress = now, self._progress()

    def _progress(self) -> Progress:
        return Progress(asyncio.get_running_loop().time, self.say)

    def _tell_of_scores(self, progress: Progress) -> None:
        if left := self.unscored():
            progress.tell(f"{self.name}: {self.held_out - left} of {self.held_out} microbatches evaluated")

    async def _lasts(self, account: str) -> bool:
        try:
            async with asyncio.timeout(MOMENT_S):
                await self.view.wait_for(lambda: self._account() != account)
        except TimeoutError:
            return True
        return False

    def _account(self) -> str:
        view = self.view
        if view.cut_off:
            return "the directory does not answer; no step is decided until it does"
        if not view.revision:
            return "waits for the directory"
        head = view.head
        if head is None and HEAD in view.strange:
            return unreadable_head(view.strange[HEAD])
        empty = [stage for stage in range(head.stages) if not view.serving(stage)] if head else []
        evaluates = str(self.held_out) if head and self.due() else ""
        saved = saved_steps(mark for each in view.saved.values() for mark in each.all()) if head is None else ""
        why = waits_for(head, view.leader, bool(view.trainers), empty, evaluates, saved=saved)
        return f"waits for {why}" if why else ""


@asynccontextmanager
async def telling(what: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """A block that may have to wait: if it lasts, say for what."""
    async with Nursery() as tasks:
        tell = tasks.create_task(_tell(f"waits for {what}", say))
        yield
        tell.cancel()


async def _tell(text: str, say: Callable[[str], None]) -> None:
    await asyncio.sleep(MOMENT_S)
    say(text)
