"""The lines of text of a swarm's process: what it waits for, and what a peer does.

A wait is logged once it has lasted MOMENT_S, as most are shorter; then its end is logged, too. A peer's line is logged
whenever its state changes. No torch.
"""

import asyncio
import math
from dataclasses import dataclass

from pipelined.process.reporting.progress import EVERY_S, MOMENT_S, Progress, Say
from pipelined.swarm.process.processes import PeerProcess, TrainerProcess
from pipelined.swarm.records.members import Peer, Phase
from pipelined.swarm.records.steps import HEAD, Commit
from pipelined.swarm.status.reader import waits_for


@dataclass(frozen=True)
class WaitLog:
    """What a swarm waits for, as one trainer sees it."""

    trainer: TrainerProcess
    say: Say

    async def follow(self) -> None:
        """Log every wait that lasts, the progress of an evaluation, and the end of the wait, until cancelled."""
        last, progress = "", self._progress()
        while True:
            now = self._what_it_waits_for()
            if now == last:
                await self.trainer.view.next_change(EVERY_S if now else math.inf)
                self._log_scores(progress)
            elif not now or await self._outlasts_moment(now):
                self.say(f"{self.trainer.name}: {now or 'training continues'}")
                last, progress = now, self._progress()

    def _progress(self) -> Progress:
        return Progress(asyncio.get_running_loop().time, self.say)

    def _log_scores(self, progress: Progress) -> None:
        held_out = self.trainer.rules.eval_batch
        if left := self.trainer.leader.unscored:
            progress.show(f"{self.trainer.name}: {held_out - left} of {held_out} microbatches evaluated")

    async def _outlasts_moment(self, wait: str) -> bool:
        try:
            async with asyncio.timeout(MOMENT_S):
                await self.trainer.view.wait_for(lambda: self._what_it_waits_for() != wait)
        except TimeoutError:
            return True
        return False

    def _what_it_waits_for(self) -> str:
        view = self.trainer.view
        if view.cut_off:
            return "the directory does not reply; no step is committed until it replies"
        if not view.revision:
            return "waits for the directory"
        if view.head is None and HEAD in view.unreadable:
            return _unreadable_head(view.unreadable[HEAD])
        evaluates = view.head is not None and self.trainer.is_to_evaluate()
        why = waits_for(view, evaluates=str(self.trainer.rules.eval_batch) if evaluates else "")
        return f"waits for {why}" if why else ""


@dataclass(frozen=True)
class PeerLog:
    """What one peer does: its record in the directory, and why it cannot continue.

    Args:
        process: of the peer; its `peer.last_fetch_error` says why the last fetch of state failed.
    """

    process: PeerProcess
    say: Say

    async def follow(self) -> None:
        """Log every change, until cancelled."""
        view, name = self.process.view, self.process.name
        await view.wait_for(lambda: view.revision > 0 or view.cut_off)
        last, leaves = "", False
        while True:
            record = view.peers.get(name)
            leaves = record.phase == Phase.LEAVING if record else leaves
            now = self._describe(record) if record or not leaves else last  # its record ends before its process
            if now != last:
                self.say(f"{name}: {now}")
            last = now
            await view.next_change()

    def _describe(self, record: Peer | None) -> str:
        view = self.process.view
        if view.cut_off:
            return "the directory does not reply; this peer serves passes, but applies no step until it replies"
        if view.head is None and HEAD in view.unreadable:
            return _unreadable_head(view.unreadable[HEAD])
        if view.head is None:
            return "waits for a trainer that begins"
        if record and record.address != self.process.address:
            return f"waits for its name, which another process has (at {record.address}), until that one's lease ends"
        if record is None and view.leader is None:
            return "waits for a leader, which assigns it a stage"
        return self._describe_at_stage(record, view.head) if record else "is not a member; requests membership"

    def _describe_at_stage(self, record: Peer, head: Commit) -> str:
        if record.phase != Phase.JOINING:
            does = {
                Phase.SERVING: "serves",
                Phase.DRAINING: "drains: serves until another peer has its state or its grace period ends",
                Phase.LEAVING: "hands over, and leaves",
            }
            return f"stage {record.stage}: {does[Phase(record.phase)]}"
        if not self.process.view.holding(record.stage) and (head.step or head.was_summed):
            return f"stage {record.stage}: waits for a peer that has its state, or a checkpoint"
        error = self.process.peer.last_fetch_error
        failed = f" (the last try failed: {error})" if error else ""
        return f"stage {record.stage}: fetches its state{failed}"


def _unreadable_head(why: str) -> str:
    """The message of a process that cannot read the directory's head and remembers no other."""
    fact = f"the directory's record 'head' cannot be read ({why})"
    return f"{fact}; waits for a trainer that remembers the step, or for one that is started with --resume"
