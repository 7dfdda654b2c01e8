"""The part of rank 0 in `--schedule swarm`, beside its peer and its trainer: it reports on the training and ends it.

Training stops on all ranks before rank 0 fetches the model, so no step is taken meanwhile.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from apps.common.lm.data.ngram import compare_with_ngrams
from apps.common.lm.export import FinalOutput, Say, say_digest
from apps.common.lm.weights import Weights
from apps.common.run.report import Report
from apps.common.run.trackers import Tracker, opened_trackers
from apps.gpt2.config import GPT2Flags
from apps.gpt2.swarm.rank import ENDED, STOP, STOPPED, SwarmRank
from apps.gpt2.swarm.report import StepReporter
from pipelined.aio.tasks import cancel_and_wait
from pipelined.errors import UsageError
from pipelined.process.reporting.events import warn
from pipelined.state.stages.store import CheckpointStore, StoreError
from pipelined.swarm.process.observer import SwarmSnapshot, snapshot
from pipelined.swarm.process.roles import JoinedTrainer
from pipelined.swarm.process.trainer_process import run_trainer
from pipelined.swarm.records.members import PEERS
from transports import Message, Nursery

RETRY_S = 1.0
"""Seconds between two attempts to save a stage that a peer is saving."""
IsListed = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class RankZero:
    """Rank 0 while the swarm trains, and its end.

    Args:
        url: of the directory.
        stop: set when this process receives a stop request.
    """

    rank: SwarmRank
    trainer: JoinedTrainer
    url: str
    stop: asyncio.Event

    async def run(self) -> None:
        """Report until the last step, or a stop request on any rank; then fetch, save and export the model."""
        async with opened_trackers(self.rank.job.config, shown=True) as trackers:
            await self._run(trackers)

    async def _run(self, trackers: Sequence[Tracker]) -> None:
        job, transport, start = self.rank.job, self.rank.transport, self.rank.start
        other_ranks = range(1, transport.world_size)
        first_step = start.step if start else 0
        steps = job.settings.steps
        with Report(
            True, first_step=first_step, steps=steps, tokens=job.tokens, metrics=job.config.metrics, trackers=trackers
        ) as report:
            async with Nursery() as tasks:
                report.say(f"others join by: {join_command(self.url, job.config)}")
                if first_step:
                    report.say(f"continues from step {first_step}, which all stages had saved")
                confirmations = [tasks.create_task(transport.receive(rank, STOPPED)) for rank in other_ranks]
                receiving = [tasks.create_task(self.rank.active_time.receive(rank)) for rank in other_ranks]
                done, loss = await self._train(tasks, confirmations, report)
                await cancel_and_wait(*receiving)
                for rank in other_ranks:
                    await transport.send(rank, STOP)
                for confirmation in confirmations:
                    await confirmation
            await self._finish(report, loss, done)
            for rank in other_ranks:
                await transport.send(rank, ENDED)

    async def _train(
        self, tasks: Nursery, confirmations: "Sequence[asyncio.Task[Message]]", report: Report
    ) -> tuple[bool, float | None]:
        """Train until the end or a stop on any rank. Returns whether it is the end, and the last step's evaluation."""
        rank, process = self.rank, self.trainer.process
        steps = StepReporter(rank.session.training.optimizer_settings, active_time=rank.active_time, report=report)
        training = tasks.create_task(run_trainer(process, self.stop, steps.report, report.say))
        await asyncio.wait([training, *confirmations], return_when=asyncio.FIRST_COMPLETED)
        self.stop.set()
        return await training, steps.loss

    async def _finish(self, report: Report, loss: float | None, done: bool) -> None:
        """Fetch the model if it is needed, and save it; at the end of training also score, export and sample it."""
        config, head = self.rank.job.config, self.trainer.process.view.head
        step = head.step if head is not None else 0
        needs_model = config.checkpoint or (done and (config.export or config.sample or config.digest))
        stages = await snapshot(self.trainer.observer, self.rank.session) if step and needs_model else []
        await self._save(stages)
        if done:
            return await self._conclude(stages, loss, report.say)
        step = stages[0][0].step if stages else step
        nowhere = "give --checkpoint to keep the work" if config.checkpoint is None else "there was no step yet"
        report.say(
            f"stopped on request after {step} steps; saved to {config.checkpoint if stages else f'nowhere: {nowhere}'}"
        )

    async def _save(self, stages: SwarmSnapshot) -> None:
        """Save every stage, if there is a --checkpoint directory. Raises UsageError: as `save_stages`."""
        if self.rank.store is not None and self.rank.job.config.checkpoint is not None:
            await save_stages(self.rank.store, stages, self._is_listed)

    async def _is_listed(self, peer: str) -> bool:
        key = PEERS + peer
        return key in (await self.trainer.observer.directory.read(key)).entries

    async def _conclude(self, stages: SwarmSnapshot, loss: float | None, say: Say) -> None:
        """Compare the loss with n-grams, export and sample, as the flags request.

        Args:
            stages: the trained model; empty where it is not needed.
            loss: on the validation text; None where it was not evaluated.
        """
        config, text, context = self.rank.job.config, self.rank.text, self.rank.job.settings.seq
        if loss is not None:
            say(compare_with_ngrams(loss, await asyncio.to_thread(text.score_ngrams, context)))
        if not stages:
            return
        weights = Weights.of_stages(self.rank.session.model, [state for _, state in stages])
        if config.digest:
            await say_digest(weights, config.steps, say)
        output = FinalOutput(config.export, config.sample, config.prompt, context, config.seed)
        await output.write(weights, text.tokenizer, say)


async def save_stages(store: CheckpointStore, stages: SwarmSnapshot, is_listed: IsListed) -> None:
    """Save every stage. If a peer is saving one, first wait until the peer has finished.

    A suspended peer does not end its save. It is dismissed as soon as the directory does not list it any more.

    Args:
        is_listed: whether the directory lists a peer of this name.
    Raises:
        UsageError: the stages cannot be written.
    """
    gone_peer = ""
    for save, state in stages:
        try:
            while writer := await asyncio.to_thread(store.save, save, state, gone_peer):
                if writer == gone_peer or await is_listed(writer):
                    await asyncio.sleep(RETRY_S)
                else:
                    warn("saver dismissed", stage=save.stage, step=save.step, peer=writer, why="its lease ended")
                    gone_peer = writer
        except StoreError as error:
            raise UsageError(str(error)) from error


def join_command(coordinator: str, config: GPT2Flags) -> str:
    """The command by which another machine joins; its peer saves where and as often as the ranks do."""
    words = ["python", "-m", "apps.swarm", "serve", "--coordinator", coordinator]
    if config.checkpoint is not None:
        words += ["--checkpoint", str(config.checkpoint.absolute()), "--save-every", str(config.save_every)]
    return shlex.join(words)
