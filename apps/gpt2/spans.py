"""How far a job trains in one go: a step, or without a flush all steps to the next drain.

A drain is where nothing is under way on any rank: before an evaluation, before a checkpoint, and at the end. The rule:
where drains are depends on the flags alone, so a run that was interrupted at one goes on as if it had not been.
"""

from collections.abc import Callable

from apps.gpt2.config import Config
from pipelined.training.trainer import StepReport, Trainer
from pipelined.training.without_flush.trainer import AsynchronousTrainer


async def advance(
    trainer: Trainer, config: Config, done: int, stopping: Callable[[], bool], tell: Callable[[StepReport], None]
) -> StepReport:
    """Train on from the steps that are done, at least one more.

    Args:
        stopping: whether this rank was asked to stop.
        tell: called with the report of each step but the last.
    Returns: the last step's report.
    """
    if isinstance(trainer, AsynchronousTrainer):
        return await trainer.stretch(range(done, next_drain(config, done)), stopping, tell)
    return await trainer.step(done, stopping)


def next_drain(config: Config, done: int) -> int:
    """The number of steps behind which the pipe is drained next."""
    drains = [done - done % every + every for every in (config.eval_every, config.save_every) if every]
    return min([config.steps, *drains])


def due(count: int, every: int) -> bool:
    """Whether what happens every so many steps (0: never) happens behind this many."""
    return every > 0 and count % every == 0
