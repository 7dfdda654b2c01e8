"""The part of rank 0 in `--schedule swarm`, beside its peer and its trainer: it reports on the training and ends it.

Training stops on all ranks before rank 0 fetches the model, so no step is taken meanwhile.
"""

import asyncio
import shlex
from dataclasses import dataclass

from apps.gpt2.config import Config
from apps.gpt2.report import Report, reporting
from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.swarm.rank import Rank
from apps.gpt2.swarm.report import ActiveTime, StepReporter
from apps.gpt2.train import compare
from apps.lm.data.ngram import score_ngrams
from apps.lm.data.text import Text
from apps.lm.models.gpt2 import GPT2
from apps.swarm.address import SwarmAddress
from apps.swarm.export import Say, Wish
from apps.swarm.joining import entered
from apps.swarm.waiting import WaitLog
from apps.swarm.weights import Weights
from pipelined.aio.clock import RealClock
from pipelined.aio.nursery import Nursery
from pipelined.directory import Directory
from pipelined.membership.client import Node
from pipelined.process.stop_request import StopRequest
from pipelined.state import store
from pipelined.swarm.observer import SwarmSnapshot
from pipelined.swarm.processes import TrainerProcess
from pipelined.swarm.view import SwarmView
from transports.rpc import Endpoint

HALT, HALTED, OVER = ("swarm", "halt"), ("swarm", "halted"), ("swarm", "over")
"""Tags: rank 0 requests that training stops; a rank confirms; rank 0 says that it has fetched the model."""
LOOK_S = 0.5
"""Seconds between two checks for a stop request."""


@dataclass(frozen=True)
class Lead:
    """Rank 0's part.

    Args:
        address: of the directory, and where the endpoint of this part listens.
    """

    rank: Rank
    trainer: TrainerProcess
    active_time: ActiveTime
    address: SwarmAddress
    stop: StopRequest

    async def run(self, training: "asyncio.Task[None]") -> None:
        """Report until the last step, or until a rank receives a stop request; then fetch, save and export the model.

        Args:
            training: the task of this rank's trainer.
        """
        job, transport = self.rank.job, self.rank.transport
        others = range(1, transport.world_size)
        begun = self.rank.begun
        first, steps = begun.step if begun else 0, job.subject.steps
        with reporting(True, first=first, steps=steps, tokens=job.tokens, metrics=job.config.metrics) as report:
            async with entered(self.address) as (endpoint, directory), Nursery() as tasks:
                report.say(f"others join by: {joining(self.address.coordinator, self.rank.job.config)}")
                if begun and begun.step:
                    report.say(f"continues from step {begun.step}, which all stages had saved")
                halted = [tasks.create_task(transport.receive(rank, HALTED)) for rank in others]
                receiving = [tasks.create_task(self.active_time.receive(rank)) for rank in others]
                stopping = tasks.create_task(stop_requested(self.stop, self.trainer.view))
                log = tasks.create_task(self._log(report).follow())
                waits = tasks.create_task(self._waits(report).follow())
                await asyncio.wait([log, stopping, *halted], return_when=asyncio.FIRST_COMPLETED)
                loss, done = (log.result(), True) if log.done() else (None, False)
                await cancelled(training, stopping, log, waits, *receiving)
                for rank in others:
                    await transport.send(rank, HALT)
                for each in halted:
                    await each
                await self._fetch_model(endpoint, directory, report, loss, done)
            for rank in others:
                await transport.send(rank, OVER)

    def _log(self, report: Report) -> StepReporter:
        optimizer_config, steps = self.rank.session.training.optimizer_config, self.trainer.committed_steps()
        return StepReporter(steps, optimizer_config, active_time=self.active_time, report=report)

    def _waits(self, report: Report) -> WaitLog:
        return WaitLog(self.trainer, self.rank.feed.held_out, report.say)

    async def _fetch_model(
        self, endpoint: Endpoint, directory: Directory, report: Report, loss: float | None, done: bool
    ) -> None:
        config, head = self.rank.job.config, self.trainer.view.head
        taken = head is not None and head.step > 0
        wanted = config.checkpoint or (done and (config.export or config.sample))
        snapshot = (
            await self.rank.session.snapshot(Node("visitor0", endpoint, directory, RealClock()))
            if taken and wanted
            else []
        )
        outcome = Outcome(self.rank.job, self.rank.text, snapshot)
        await outcome.save()
        if done:
            return await outcome.report(loss, report.say)
        step = snapshot[0][0].step if snapshot else head.step if taken else 0
        nowhere = "give --checkpoint to keep the work" if config.checkpoint is None else "there was no step yet"
        report.say(
            f"stopped on request after step {step}; saved to {config.checkpoint if snapshot else f'nowhere: {nowhere}'}"
        )


@dataclass(frozen=True)
class Outcome:
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
                told = {"keep": config.keep, "text": self.text.digest}
                await asyncio.to_thread(store.save, config.checkpoint, saved, state, identity, **told)

    async def report(self, loss: float | None, say: Say) -> None:
        """Compare the loss with n-grams, export and sample, as the flags request.

        Args:
            loss: on the validation text; None where it was not evaluated.
        """
        config, text, context = self.job.config, self.text, self.job.subject.seq
        if loss is not None:
            counted = text.train, text.validation, context, text.tokenizer.vocab_size
            say(compare(loss, await asyncio.to_thread(score_ngrams, *counted)))
        if not self.snapshot:
            return
        weights = Weights.of_stages(GPT2(self.job.model), [state for _, state in self.snapshot])
        await Wish(config.export, config.sample, config.prompt, context, config.seed).fulfil(
            weights, text.tokenizer, say
        )


def joining(coordinator: str, config: Config) -> str:
    """The command by which another machine joins; its peer saves where and as often as the ranks do."""
    words = ["python", "-m", "apps.swarm", "serve", "--coordinator", coordinator]
    if config.checkpoint is not None and config.save_every:
        words += ["--checkpoint", str(config.checkpoint.absolute()), "--save-every", str(config.save_every)]
    return shlex.join(words)


async def stop_requested(stop: StopRequest, view: SwarmView) -> None:
    """Wait until this process receives a stop request."""
    while not stop.requested:
        await view.next_change(LOOK_S)


async def cancelled(*tasks: "asyncio.Task") -> None:
    """Cancel these tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
