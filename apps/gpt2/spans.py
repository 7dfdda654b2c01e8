"""How far a job trains before it may stop: a step, or without a flush all steps to the next drain.

At a drain no microbatch is in flight on any rank: before an evaluation, before a checkpoint, and at the end. The drains
depend on the flags alone, so a run that was interrupted at one resumes as if it had not been.
"""

from collections.abc import Callable

from apps.gpt2.config import Config
from pipelined.training.trainer import StepReport, Trainer


async def advance(
    trainer: Trainer, config: Config, done: int, stopping: Callable[[], bool], report: Callable[[StepReport], None]
) -> StepReport:
    """Train at least one more step behind those that are done.

    Args:
        stopping: whether this rank received a stop request.
        report: called with the report of each step but the last.
    Returns: the last step's report.
    """
    end = done + 1 if trainer.plan.flushes else next_drain(config, done)
    return await trainer.train(range(done, end), stopping, report)


def next_drain(config: Config, done: int) -> int:
    """The number of steps done at the next drain."""
    drains = [done - done % every + every for every in (config.eval_every, config.save_every) if every]
    return min([config.steps, *drains])


def due(count: int, every: int) -> bool:
    """Whether something that happens every `every` steps (0: never) happens after step `count`."""
    return every > 0 and count % every == 0
