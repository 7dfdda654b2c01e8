"""The steps of one cluster on one of its nodes, with the rounds between its spans or beside them. Imports torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from pipelined.ravnest.overlapped import OverlappedRounds
from pipelined.ravnest.rounds import Rounds, flat_copy
from pipelined.ravnest.saving import StageSaver
from pipelined.ravnest.training import ClusterTraining
from pipelined.training.segments.stage_updates import AfterUpdate
from pipelined.training.step_report import StepReport
from pipelined.training.trainer import RankTrainer


@dataclass(frozen=True)
class ClusterRun:
    """The training of one cluster.

    Args:
        number: of the cluster.
        many: clusters, C.
        tensors: parameters and buffers of this node, by name, in the order of its layers.
        on_step: called with each step that the cluster completed, in order.
    """

    training: ClusterTraining
    number: int
    many: int
    trainer: RankTrainer
    tensors: Mapping[str, torch.Tensor]
    on_step: Callable[[StepReport], None]

    async def alone(self, saver: StageSaver | None) -> None:
        """Train all steps in the only cluster, which saves its own values where several would be averaged."""
        every, spans = self._updates_between_rounds, len(self.training.spans_of(0, 1))

        async def save(number: int) -> None:
            if saver is not None:
                await saver.begin(number)
                held, executor = self.tensors.values(), self.trainer.context.executor
                await saver.save(number, (await executor.run("snapshot", lambda: flat_copy(held)))[0])

        async def after_update(updates: int) -> None:
            if updates % every == 0 and updates // every < spans:
                await save(updates // every)

        if steps := self.training.steps_of(0, 1):
            await self._train(steps, after_update)
        await save(spans)

    async def between(self, rounds: Rounds) -> None:
        """Train span by span, and drain for the round after each."""
        for index, span in enumerate(self.training.spans_of(self.number, self.many)):
            if span:
                self.on_step(await self.trainer.train(span, on_step=self.on_step))
            await rounds.average(self.training.weight(self.number, self.many, index))

    async def beside(self, rounds: Rounds, order: Mapping[int, int], added: dict[int, int]) -> None:
        """Train all steps, with rounds beside them, and one more at the end.

        Args:
            order, added: see `OverlappedRounds`.
        """
        training, steps = self.training, self.training.steps_of(self.number, self.many)
        every, last = self._updates_between_rounds, len(training.spans_of(self.number, self.many)) - 1
        overlapped = OverlappedRounds(
            rounds, self.trainer.context.actor, every=every, many=last, order=order, added=added
        )
        if steps:
            await self._train(steps, overlapped.after_update)
        await overlapped.finish(len(steps) * training.microbatches)
        await rounds.average(training.weight(self.number, self.many, last))

    async def _train(self, steps: range, then: AfterUpdate) -> None:
        """Train these steps.

        Args:
            then: called after each update, when the running statistics are those of all steps that ended with it.
        """

        async def after_update(updates: int) -> None:
            await self.trainer.merge_statistics(updates // self.training.microbatches)
            await then(updates)

        self.on_step(await self.trainer.train(steps, on_step=self.on_step, after_update=after_update))

    @property
    def _updates_between_rounds(self) -> int:
        return self.training.every * self.training.microbatches
