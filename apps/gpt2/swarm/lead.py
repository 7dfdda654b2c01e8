"""What rank 0 of `--schedule swarm` does beside being a peer and a trainer: it tells of the training, and ends it.

The rule: training is over for all ranks before the model is brought home, so that no step is taken meanwhile.
"""

import asyncio
import shlex
from dataclasses import dataclass

from apps.gpt2.config import Config
from apps.gpt2.report import Report, reporting
from apps.gpt2.swarm.end import Outcome
from apps.gpt2.swarm.rank import Rank
from apps.gpt2.swarm.report import Busy, Log
from apps.swarm.commands import entered
from apps.swarm.config import Place
from apps.swarm.waiting import WaitLog
from pipelined.aio.clock import RealClock
from pipelined.aio.nursery import Nursery
from pipelined.directory import Directory
from pipelined.membership.view import Roster
from pipelined.process.stop_request import StopRequest
from pipelined.swarm.processes import TrainerProcess
from transports.rpc import Endpoint

HALT, HALTED, OVER = ("swarm", "halt"), ("swarm", "halted"), ("swarm", "over")
"""From rank 0: train no more. To it: this rank does not. From it: all is brought home."""
LOOK_S = 0.5
"""How often a rank looks whether it was asked to stop."""


@dataclass(frozen=True)
class Lead:
    """Rank 0's part.

    Args:
        place: where the directory is, and whoever talks to it from here.
    """

    rank: Rank
    trainer: TrainerProcess
    busy: Busy
    place: Place
    stop: StopRequest

    async def run(self, training: "asyncio.Task[None]") -> None:
        """Let all train to the last step, or until some rank is asked to stop; then bring the model home.

        Args:
            training: this rank's trainer at work.
        """
        job, transport = self.rank.job, self.rank.transport
        others = range(1, transport.world_size)
        begun = self.rank.begun
        with reporting(True, begun.step if begun else 0, job.subject.steps, job.tokens, job.config.metrics) as report:
            async with entered(self.place) as (endpoint, directory), Nursery() as tasks:
                report.say(f"others join by: {joining(self.place.coordinator, self.rank.job.config)}")
                if begun and begun.step:
                    report.say(f"goes on from step {begun.step}, which all stages had saved")
                halted = [tasks.create_task(transport.receive(rank, HALTED)) for rank in others]
                hearing = [tasks.create_task(self.busy.hear(rank)) for rank in others]
                stopping = tasks.create_task(asked(self.stop, self.trainer.roster))
                log = tasks.create_task(self._log(directory, report).follow())
                waits = tasks.create_task(self._waits(report).follow())
                await asyncio.wait([log, stopping, *halted], return_when=asyncio.FIRST_COMPLETED)
                loss, done = (log.result(), True) if log.done() else (None, False)
                await ended(training, stopping, log, waits, *hearing)
                for rank in others:
                    await transport.send(rank, HALT)
                for each in halted:
                    await each
                await self._bring_home(endpoint, directory, report, loss, done)
            for rank in others:
                await transport.send(rank, OVER)

    def _log(self, directory: Directory, report: Report) -> Log:
        return Log(directory, self.rank.rules, self.rank.training.recipe, RealClock(), self.busy, report)

    def _waits(self, report: Report) -> WaitLog:
        trainer = self.trainer
        scoring = trainer.is_to_evaluate, self.rank.feed.held_out, lambda: trainer.leadership.unscored
        return WaitLog(trainer.name, trainer.roster, *scoring, report.say)

    async def _bring_home(
        self, endpoint: Endpoint, directory: Directory, report: Report, loss: float | None, done: bool
    ) -> None:
        config, head = self.rank.job.config, self.trainer.roster.head
        taken = head is not None and head.step > 0
        wanted = config.checkpoint or (done and (config.export or config.sample))
        visited = await self.rank.visitor(endpoint, directory).take() if taken and wanted else []
        outcome = Outcome(self.rank.job, self.rank.text, visited)
        await outcome.save()
        if done:
            return await outcome.tell(loss, report.say)
        step = visited[0][0].step if visited else head.step if taken else 0
        nowhere = "give --checkpoint to keep the work" if config.checkpoint is None else "there was no step yet"
        report.say(
            f"stopped on request after step {step}; saved to {config.checkpoint if visited else f'nowhere: {nowhere}'}"
        )


def joining(coordinator: str, config: Config) -> str:
    """The command by which another machine joins; its peer saves as the ranks do, where they save."""
    words = ["python", "-m", "apps.swarm", "serve", "--coordinator", coordinator]
    if config.checkpoint is not None and config.save_every:
        words += ["--checkpoint", str(config.checkpoint.absolute()), "--save-every", str(config.save_every)]
    return shlex.join(words)


async def asked(stop: StopRequest, roster: Roster) -> None:
    """Wait until this process is asked to stop."""
    while not stop.requested:
        await roster.next_change(LOOK_S)


async def ended(*tasks: "asyncio.Task") -> None:
    """End these tasks, and wait until they have."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
