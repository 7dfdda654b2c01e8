"""This project's pipeline as a contender: what `apps.gpt2` trains with, over MPI."""

import sys
import time

import numpy as np

from benchmarks.harness.launch import run_ranks
from benchmarks.pipelines.contender import Result, Task, Trial, tell
from benchmarks.pipelines.contest import Contest, CutGPT2, TokenRows
from collectives import all_reduce, barrier
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from transports import Transport


async def contend(transport: Transport, task: Task) -> int:
    """One rank of all trials."""
    executor = TorchExecutor("cpu", RealClock(), transport.set_computing)
    try:
        async with Actor(transport) as actor:
            results = [await _trial(actor, executor, task.contest, trial) for trial in task.trials]
    finally:
        executor.close()
    if transport.rank == 0:
        tell(results)
    return 0


async def _trial(actor: Actor, executor: TorchExecutor, contest: Contest, trial: Trial) -> Result:
    plan = contest.plan(trial.schedule, trial.ends)
    job = JobDescription(
        model=CutGPT2(contest.config, trial.ends),
        plan=plan,
        feed=TokenRows(contest),
        optimizer_settings=contest.optimizer_settings,
        numerics=Numerics(),
        sequence=contest.sequence,
        seed=contest.seed,
    )
    trainer = build_rank(actor, job, executor=executor, tracer=NullTracer())
    reports = [await trainer.step(step) for step in contest.before]
    await barrier(trainer.world)
    start, used = executor.clock.now(), time.process_time()
    reports += [await trainer.step(step) for step in contest.timed]
    await barrier(trainer.world)
    seconds = executor.clock.now() - start
    cpu = np.array([(time.process_time() - used) / contest.steps])
    await all_reduce(trainer.world, cpu)
    reports.append(await trainer.step(contest.last))
    rate, losses = contest.tokens * contest.steps / seconds, tuple(report.loss for report in reports)
    return Result(trial.schedule, trial.ends, rate, float(cpu[0]), losses, reports[-1].grad_norm)


def main() -> int:
    """Run on whatever launcher started this."""
    task = Task.loads(sys.argv[1])
    return run_ranks(lambda transport: contend(transport, task))


if __name__ == "__main__":
    sys.exit(main())
