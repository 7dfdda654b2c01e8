"""One rank of a job that trains a user's model: its trainer, the state that it saves and loads, and its evaluation."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import torch

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.agree import agree, require_equal
from pipelined.actors.device.executor import TorchExecutor
from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.planning.rank_memory import RankMemoryEstimate
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import writing
from pipelined.process.exit import print_to_stderr
from pipelined.process.launch import Launch
from pipelined.process.whole_file import require_writable
from pipelined.programs.partition import partition
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.claim import claimed
from pipelined.state.checkpoints.saving import CheckpointSaver
from pipelined.state.checkpoints.torch_file import make_placeholders, write_torch_file
from pipelined.state.checkpoints.trainer_state import SaveTarget, load
from pipelined.state.checkpoints.whole_state import gather_state, write_state
from pipelined.state.tensor_specs import TensorSpecs
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.digests import model_digest, require_equal_batches
from pipelined.training.evaluate import ScoreFunction, Window, evaluate, sample
from pipelined.training.planned_bytes import planned_bytes
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.step_report import StepReport
from transports import Transport

EQUALLY = "give every rank equal arguments"


class RankSession:
    """One rank of a job, between two steps. All ranks make the same calls in the same order.

    Args:
        trainer: holds this rank's stages.
        settings: of the user's optimizer, which the trainer applies.
        claims: of directories; it ends with the rank.
        saver: writes checkpoints, also while the rank trains.
        memory_estimate: of this rank; it takes the shapes of the first step's data.

    Attributes:
        done: the steps done, those before a loaded checkpoint included.
        loaded: the checkpoint, or the directory of checkpoints, that was loaded last; None: the run began anew.
    """

    def __init__(
        self,
        job: ArrangedJob,
        trainer: RankTrainer,
        *,
        settings: UserOptimizer,
        claims: AsyncExitStack,
        saver: CheckpointSaver,
        memory_estimate: RankMemoryEstimate,
    ):
        self.trainer = trainer
        self._job = job
        self._settings = settings
        self._saver = saver
        self._memory_estimate = memory_estimate
        self._claim_stack = claims
        self._claims = dict[Path, bool]()
        self._evaluations = 0
        self.done = 0
        self.loaded: Path | None = None
        self._batches_are_equal = False

    @property
    def transport(self) -> Transport:
        """The transport that connects this rank to the others."""
        return self.trainer.context.actor.transport

    @classmethod
    @asynccontextmanager
    async def opened(cls, transport: Transport, launch: Launch, job: ArrangedJob) -> "AsyncIterator[RankSession]":
        """Build this rank's stages; inside the `async with` block it can train.

        Raises:
            AgreedError: on every rank: the model, the plan and the optimizer do not fit together on one of them, or
                two ranks have different ones.
        """
        async with AsyncExitStack() as stack:
            executor = TorchExecutor.of_rank(transport, job.numerics.threads, share_devices=launch.share_devices)
            stack.callback(executor.close)
            actor = await stack.enter_async_context(Actor(transport))
            claims = await stack.enter_async_context(AsyncExitStack())  # held until the last save is written

            async def build() -> tuple[RankTrainer, UserOptimizer, RankMemoryEstimate]:
                settings = job.make_settings()
                memory_estimate = RankMemoryEstimate(
                    transport.rank, job.plan, model=job.model, numerics=job.numerics, optimizer=settings.make
                )
                executor.configure(planned_memory=memory_estimate)
                with suppress(KeyError):  # a user's own loop has not given a step's data yet
                    memory_estimate.keep_shapes(job.feed, 0)
                trainer = build_rank(actor, job.describe(settings), executor=executor, tracer=NullTracer())
                return trainer, settings, memory_estimate

            trainer, settings, memory_estimate = await agree(transport, "built", build())
            await require_equal(transport, "arguments", job.arguments(settings), EQUALLY)
            job.model.release()
            saver = await stack.enter_async_context(CheckpointSaver(trainer))
            yield cls(job, trainer, settings=settings, claims=claims, saver=saver, memory_estimate=memory_estimate)
            await trainer.rank_optimizer.finish_update()  # an error of the last update is one of the job

    async def train(
        self, steps: range, stopping: Callable[[], bool], on_step: Callable[[StepReport], None]
    ) -> StepReport:
        """Train a segment of steps; see `RankTrainer.train`. `on_step` is called with the report of each but the last.

        Raises:
            AgreedError: on every rank: as there, or two ranks have different batches in the first step.
        """
        await self._require_equal_batches(steps.start)
        self._memory_estimate.keep_shapes(self._job.feed, steps.start)
        report = await self.trainer.train(steps, stopping, on_step)
        self.trainer.rank_optimizer.run_after_update(self._settings.step)
        self.done = report.step + 1
        return report

    async def planned_bytes(self, example: Window) -> int | None:
        """Payload bytes that all ranks should send in a step, on rank 0; all ranks call this before their first step.

        None: a layer needs values, so that its shapes are not known.

        Args:
            example: a microbatch.
        """
        trainer, numerics = self.trainer, self._job.numerics
        stages = partition(trainer.model.costs(1), trainer.plan.depth)
        sums = await trainer.planned_sum_bytes()
        try:
            rank_bytes = await planned_bytes(trainer, stages, example, numerics, sums=sums)
        except Exception:  # a user's layer runs without values here, and may raise anything where it needs some
            rank_bytes = None
        planned_by_rank = await gather_objects(trainer.context.actor.transport, "planned bytes", rank_bytes)
        return None if not planned_by_rank or None in planned_by_rank else sum(planned_by_rank)

    async def evaluate(self, windows: Sequence[Window], score: ScoreFunction | None = None) -> float:
        """The mean loss over some microbatches, or the mean of another score, in evaluation mode; on all ranks."""
        self._evaluations += 1
        trainer, tag = self.trainer, self._evaluations
        async with trainer.with_last_update():
            return await evaluate(trainer.context, trainer.model, windows, trainer.world, tag=tag, score=score)

    async def sample(
        self,
        prompt: Sequence[int],
        count: int,
        sequence: int,
        pick: Callable[[torch.Tensor, int], int],
        *,
        cached: bool = False,
    ) -> list[int]:
        """Continue a prompt by `count` tokens; see `pipelined.training.evaluate.sample`."""
        async with self.trainer.with_last_update():
            continued = await sample(self.trainer.context, [prompt], count, sequence, pick, cached=cached)
        return continued[0] if continued else []

    async def digest(self) -> str:
        """A digest of all parameters, on rank 0; "" elsewhere."""
        return await model_digest(self.transport, self.trainer.local)

    async def load(self, path: Path) -> int:
        """Load a checkpoint; returns the number of steps done."""
        self.done = await load(self.trainer, path)
        self.loaded = path
        self._settings.resume(self.done)
        return self.done

    async def claim(self, directory: Path, origin: Path | None) -> None:
        """Hold a directory for the checkpoints of this job, until the rank ends.

        Args:
            origin: the checkpoint, or the directory of checkpoints, that the run continues from, if any.
        Raises:
            AgreedError: another run saves there, or it holds checkpoints of a run that this one does not continue.
        """
        if directory in self._claims:
            return
        transport = self.transport
        identity = dict(self._job.model.identity())
        remedy = f"continue from it (resume={str(directory)!r}), or choose another directory"

        async def check() -> None:
            if not transport.rank:
                await asyncio.to_thread(checkpoint.require_continued, directory, identity, origin, remedy)

        await agree(transport, "continued", check())
        claiming = claimed(transport, directory, lambda fact: print_to_stderr(f"warning: {fact}"))
        self._claims[directory] = await self._claim_stack.enter_async_context(claiming)

    async def save(self, directory: Path, done: int, keep: int) -> Path:
        """Save the state after some steps into a directory that is claimed; returns the checkpoint's path on rank 0."""
        return await self._saver.save(done, self._target(directory, keep))

    async def start_save(self, directory: Path, done: int, keep: int) -> None:
        """Copy the state, and save it while the rank trains; the next save waits for this one, and raises its error."""
        await self._saver.start_save(done, self._target(directory, keep))

    def _target(self, directory: Path, keep: int) -> SaveTarget:
        plan = self._job.plan
        config = {**self._job.notes, "plan": plan.schedule, "depth": plan.depth, "width": plan.width}
        return SaveTarget(directory, keep, config, self._claims[directory])

    async def _require_equal_batches(self, step: int) -> None:
        """Refuse batches that differ by rank, as a shuffling loader gives them, before the first step.

        Cost: one hash of a batch on each rank.
        """
        if not self._batches_are_equal:
            transport, feed = self.transport, self._job.feed
            digests = await agree(transport, "digest of a batch", asyncio.to_thread(feed.digests, step))
            await require_equal_batches(transport, digests, step)
            self._batches_are_equal = True

    async def state_dict(self) -> dict[str, torch.Tensor] | None:
        """The state of the whole model, as the user's module names it, on rank 0; None elsewhere.

        Cost: memory on rank 0 for the whole model, beside what it holds.
        """
        tensors = await gather_state(self.trainer)
        return None if tensors is None else self._job.model.state_dict(tensors)

    async def require_writable(self, path: Path) -> None:
        """Check that rank 0 can write a file there; other ranks may have no such directory.

        Raises:
            AgreedError: on every rank: it cannot.
        """
        writable = asyncio.to_thread(lambda: None if self.transport.rank else require_writable(path))
        await agree(self.transport, "writable", writable)

    async def export(self, path: Path) -> None:
        """Write the state of `state_dict` to a file on rank 0, whole or not at all.

        Raises:
            AgreedError: on every rank: it cannot be written.
        Cost: memory on rank 0 for one whole tensor at a time, beside what it holds.
        """
        model = self._job.model

        def write(specs: TensorSpecs, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
            placeholders = make_placeholders(specs)
            with writing(path):
                write_torch_file(path, model.state_dict(placeholders), placeholders, tensors)

        await write_state(self.trainer, write)
