"""What a swarm waits for, in words, and the log of it.

A wait is logged once it has lasted MOMENT_S, as most are shorter; then its end is logged, too.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from apps.common.progress import EVERY_S, MOMENT_S, Progress
from pipelined.aio.nursery import Nursery
from pipelined.swarm.processes import TrainerProcess
from pipelined.swarm.records import HEAD
from pipelined.swarm.status import waits_for


def unreadable_head(why: str) -> str:
    """The message of a process that cannot read the directory's head and remembers no other."""
    fact = f"the directory's record 'head' cannot be read ({why})"
    return f"{fact}; waits for a trainer that remembers the step, or for one that is started with --resume"


@dataclass(frozen=True)
class WaitLog:
    """What a swarm waits for, as one trainer sees it.

    Args:
        held_out: microbatches of an evaluation.
    """

    trainer: TrainerProcess
    held_out: int
    say: Callable[[str], None]

    async def follow(self) -> None:
        """Log every wait that lasts, the progress of an evaluation, and the end of the wait, until cancelled."""
        last, progress = "", self._progress()
        while True:
            now = self._account()
            if now == last:
                await self.trainer.view.next_change(EVERY_S if now else math.inf)
                self._log_scores(progress)
            elif not now or await self._lasts(now):
                self.say(f"{self.trainer.name}: {now or 'goes on'}")
                last, progress = now, self._progress()

    def _progress(self) -> Progress:
        return Progress(asyncio.get_running_loop().time, self.say)

    def _log_scores(self, progress: Progress) -> None:
        if left := self.trainer.leader.unscored:
            progress.show(f"{self.trainer.name}: {self.held_out - left} of {self.held_out} microbatches evaluated")

    async def _lasts(self, account: str) -> bool:
        try:
            async with asyncio.timeout(MOMENT_S):
                await self.trainer.view.wait_for(lambda: self._account() != account)
        except TimeoutError:
            return True
        return False

    def _account(self) -> str:
        view = self.trainer.view
        if view.cut_off:
            return "the directory does not reply; no step is committed until it replies"
        if not view.revision:
            return "waits for the directory"
        if view.head is None and HEAD in view.unreadable:
            return unreadable_head(view.unreadable[HEAD])
        why = waits_for(view, evaluates=str(self.held_out) if view.head and self.trainer.is_to_evaluate() else "")
        return f"waits for {why}" if why else ""


@asynccontextmanager
async def telling(what: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """A block that may wait: if it lasts MOMENT_S, log for what."""
    async with Nursery() as tasks:
        log = tasks.create_task(_say_later(f"waits for {what}", say))
        yield
        log.cancel()


async def _say_later(text: str, say: Callable[[str], None]) -> None:
    await asyncio.sleep(MOMENT_S)
    say(text)
