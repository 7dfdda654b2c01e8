"""The part of rank 0 in `--schedule swarm`, beside its peer and its trainer: it reports on the training and ends it.

Training stops on all ranks before rank 0 fetches the model, so no step is taken meanwhile.
"""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from apps.common.report import Report
from apps.common.trackers import Tracker, opened_trackers
from apps.gpt2.config import GPT2Flags
from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.swarm.rank import DONE, STOP, STOPPED, Rank
from apps.gpt2.swarm.report import ActiveTime, StepReporter
from apps.lm.data.ngram import compared
from apps.lm.data.text import Text
from apps.lm.export import FinalOutput, Say, say_digest
from apps.lm.models.gpt2 import GPT2
from apps.lm.weights import Weights
from pipelined.aio.nursery import Nursery, cancelled
from pipelined.membership.connection import connected
from pipelined.membership.node import Node
from pipelined.state import store
from pipelined.swarm.process.observer import SwarmSnapshot
from pipelined.swarm.process.processes import TrainerProcess
from pipelined.swarm.process.session import run_trainer, snapshot
from transports import Message


@dataclass(frozen=True)
class RankZero:
    """Rank 0 while the swarm trains, and its end.

    Args:
        url: of the directory.
        stop: set when this process receives a stop request.
    """

    rank: Rank
    trainer: TrainerProcess
    active_time: ActiveTime
    url: str
    stop: asyncio.Event

    async def run(self) -> None:
        """Report until the last step, or a stop request on any rank; then fetch, save and export the model."""
        async with opened_trackers(self.rank.job.config, shown=True) as trackers:
            await self._run(trackers)

    async def _run(self, trackers: Sequence[Tracker]) -> None:
        job, transport, start = self.rank.job, self.rank.transport, self.rank.start
        others = range(1, transport.world_size)
        first, steps = start.step if start else 0, job.subject.steps
        with Report(
            True, first=first, steps=steps, tokens=job.tokens, metrics=job.config.metrics, trackers=trackers
        ) as report:
            async with connected(self.url) as (endpoint, directory), Nursery() as tasks:
                report.say(f"others join by: {joining(self.url, job.config)}")
                if first:
                    report.say(f"continues from step {first}, which all stages had saved")
                stopped = [tasks.create_task(transport.receive(rank, STOPPED)) for rank in others]
                receiving = [tasks.create_task(self.active_time.receive(rank)) for rank in others]
                done, loss = await self._train(tasks, stopped, report)
                await cancelled(*receiving)
                for rank in others:
                    await transport.send(rank, STOP)
                for each in stopped:
                    await each
                await self._finish(self.rank.node("observer0", endpoint, directory), report, loss, done)
            for rank in others:
                await transport.send(rank, DONE)

    async def _train(
        self, tasks: Nursery, stopped: "Sequence[asyncio.Task[Message]]", report: Report
    ) -> tuple[bool, float | None]:
        """Train until the end or a stop on any rank. Returns whether it is the end, and the last step's evaluation."""
        steps = StepReporter(self.rank.session.training.optimizer_config, active_time=self.active_time, report=report)
        training = tasks.create_task(run_trainer(self.trainer, self.stop, steps.report, report.say))
        await asyncio.wait([training, *stopped], return_when=asyncio.FIRST_COMPLETED)
        self.stop.set()
        return await training, steps.loss

    async def _finish(self, node: Node, report: Report, loss: float | None, done: bool) -> None:
        """Fetch the model if it is needed, and save it; at the end of training also score, export and sample it."""
        config, head = self.rank.job.config, self.trainer.view.head
        step = head.step if head is not None else 0
        wanted = config.checkpoint or (done and (config.export or config.sample or config.digest))
        stages = await snapshot(node, self.rank.session) if step and wanted else []
        result = TrainingResult(self.rank.job, self.rank.text, stages)
        await result.save()
        if done:
            return await result.report(loss, report.say)
        step = stages[0][0].step if stages else step
        nowhere = "give --checkpoint to keep the work" if config.checkpoint is None else "there was no step yet"
        report.say(
            f"stopped on request after step {step}; saved to {config.checkpoint if stages else f'nowhere: {nowhere}'}"
        )


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training: saved first, then exported and sampled, which may fail.

    Args:
        snapshot: the state of every stage at one step; empty where it is not needed.
    """

    job: SwarmJob
    text: Text
    snapshot: SwarmSnapshot

    async def save(self) -> None:
        """Save every stage, if there is a --checkpoint directory."""
        config, identity = self.job.config, self.job.model.identity()
        if config.checkpoint is not None:
            for saved, state in self.snapshot:
                await asyncio.to_thread(
                    store.save,
                    config.checkpoint,
                    saved,
                    state,
                    identity,
                    keep=config.keep,
                    text=self.text.digest,
                )

    async def report(self, loss: float | None, say: Say) -> None:
        """Compare the loss with n-grams, export and sample, as the flags request.

        Args:
            loss: on the validation text; None where it was not evaluated.
        """
        config, text, context = self.job.config, self.text, self.job.subject.seq
        if loss is not None:
            say(compared(loss, await asyncio.to_thread(text.score_ngrams, context)))
        if not self.snapshot:
            return
        weights = Weights.of_stages(GPT2(self.job.model), [state for _, state in self.snapshot])
        if config.digest:
            await say_digest(weights, config.steps, say)
        await FinalOutput(config.export, config.sample, config.prompt, context, config.seed).write(
            weights, text.tokenizer, say
        )


def joining(coordinator: str, config: GPT2Flags) -> str:
    """The command by which another machine joins; its peer saves where and as often as the ranks do."""
    words = ["python", "-m", "apps.swarm", "serve", "--coordinator", coordinator]
    if config.checkpoint is not None:
        words += ["--checkpoint", str(config.checkpoint.absolute()), "--save-every", str(config.save_every)]
    return shlex.join(words)
