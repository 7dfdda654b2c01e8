"""`pipelined.Trainer` and `AsyncTrainer`: a user's own training loop over a model that is cut into stages.

Every rank runs the same loop. Each call of an `AsyncTrainer` is awaited, and the event loop runs on meanwhile.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pipelined.api.trainer_base import StateDict, TrainerBase
from pipelined.errors import FilePath, UsageError, path_of
from pipelined.training.models.batch import Batch
from pipelined.training.segments.step_report import StepReport


class Trainer(TrainerBase):
    """Trains a model by the steps that the user's loop requests; each call returns when the ranks have done it.

    Args:
        model: a `Sequential` or what it is made of, or a module that `pipelined.trace` has traced.
        plan: the arrangement, or the result of `pipelined.plan`, which also sets `recompute` and `layout`. Its world
            size must be the number of ranks that were started. Without a launcher all ranks run in this process. None:
            the plan follows from `schedule`, `depth`, `width`, `microbatches`, `tensor`, the knobs and `example`.
        schedule, depth, width, microbatches, tensor, knobs: in place of a plan; as in `pipelined.train`.
        loss: the mean loss of one microbatch, or (sum, count), from its outputs and targets.
        optimizer: builds an optimizer of torch from a list of parameters; called on each rank with its own.
        example: the inputs of one microbatch, to weigh layers (else by parameters) and check each batch.
        layout: how the ranks of a worker split every layer; see docs/teams.md.
        recompute: keep only a stage's inputs, and run its forward again before its backward; see docs/memory.md.
        compile: compile each stage by torch's compiler; see docs/memory.md.
        dtype: of parameters, activations and floating-point inputs.
        autocast: the dtype of products in the forward; True: bfloat16; False: `dtype`.
        seed: of initial values and of all random numbers in layers.
        clip: the largest global gradient norm; 0 disables clipping.
        lr_scheduler: builds the scheduler of an optimizer; its `step()` follows every step.
        all_reduce: the algorithm of the gradient sums.
        exact_sums: sum gradients without rounding, with one thread a rank; see docs/exact-sums.md.
        compress: the codec of activations and gradients between stages.
        shard_optimizer: the ranks that hold a parameter divide its update; see docs/memory.md.
        offload_optimizer: keep the optimizer's state, and update, on the host; see docs/memory.md.
        delayed_update: a step computes while the update before it runs; see docs/memory.md.
        masters: the dtype of the copies that the optimizer updates.
        transport: a transport's name or URL; "auto": the launcher's.
        share_devices: let ranks share a GPU where a machine has fewer GPUs than ranks.
    Raises:
        UsageError: on every rank: the caller can correct something.
        JobFailed: on every rank: one failed, and has printed why.

    Attributes:
        plan: the arrangement by which the model is trained.
        rank: the rank of this process; 0 where all ranks run in it.
        steps: the steps done, those before a loaded checkpoint included.

    A step accumulates the gradients of the plan's microbatches. An exception that leaves the `with` block ends all
    ranks. A call costs two hand-overs between threads beside the same step inside `pipelined.train`.
    """

    def _begin(self) -> None:
        self._open()

    def step(self, batch: Batch) -> StepReport:
        """Train one step on (inputs, targets) of a whole step, equal on all ranks.

        Without a flush the pipe is drained after each step; `pipelined.train` lets such steps overlap.

        Returns: the report of the step, with the mean loss and the gradient norm.
        Raises:
            BatchError, ModelError: the batch has rows of another plan, or the model cannot take it: nothing is done.
            UsageError: loss or gradient norm is not finite. With a flush nothing is updated. Without one some stages
                are updated already: load a checkpoint before the next step.
        """
        return self._step(batch).result()

    def planned_bytes(self, batch: Batch) -> int | None:
        """Payload bytes that all ranks together send in a step, computed from the plan before the first step.

        `StepReport.nbytes` has the bytes that they sent. Two kinds of steps send other numbers of bytes. With
        `shard_optimizer` the first step sends fewer: no weights were updated before it. With `exact_sums` a step sums
        some gradients again, and sends them twice, if its grids do not fit; those of the first step do not.

        Args:
            batch: as of `step`; its values do not matter.
        Returns: the bytes on rank 0; None on other ranks, and where a layer cannot compute shapes without values.
        """
        return self._planned_bytes(batch).result()

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over (inputs, targets) of any number of rows, in evaluation mode; the same on all ranks.

        Raises:
            BatchError, ModelError: there is nothing to evaluate, or the model cannot take it; nothing is computed.
        """
        return self._evaluate(batches).result()

    def state_dict(self) -> StateDict | None:
        """Every parameter and buffer by name, as the same `nn.Sequential` names them, on rank 0; None elsewhere."""
        return self._state_dict().result()

    def save(self, directory: FilePath, keep: int = 2) -> Path:
        """Save model, optimizer and the number of steps as a checkpoint, which any arrangement can load.

        Args:
            directory: the directory of checkpoints; from now on no other run can save there.
            keep: the number of checkpoints to keep.
        Returns: the path of the checkpoint.
        Raises:
            UsageError: another run saves there, or its checkpoints are of a run that was not loaded here; `keep` < 1.
        """
        return self._save(path_of(directory), keep).result()

    def load(self, path: FilePath) -> int:
        """Load a checkpoint, or the newest of a directory of checkpoints, saved by any arrangement of this model.

        Returns: the number of steps done, so that the loop can continue its data there.
        """
        return self._load(path_of(path)).result()

    def export(self, path: FilePath) -> None:
        """Write the state of `state_dict` to a file, which `torch.load` reads on a machine without this package.

        Cost: memory on rank 0 for one whole tensor at a time, beside what it holds; `state_dict` needs the whole model.
        """
        self._export(path_of(path)).result()

    def close(self) -> None:
        """End the job in good order; every rank calls this, or leaves the `with` block."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)


class AsyncTrainer(TrainerBase):
    """A `Trainer` for a program with an event loop: opened by `async with`, its calls awaited.

    Arguments and attributes are those of `Trainer`.
    """

    _was_entered = False

    async def step(self, batch: Batch) -> StepReport:
        """As `Trainer.step`."""
        return await asyncio.wrap_future(self._step(batch))

    async def planned_bytes(self, batch: Batch) -> int | None:
        """As `Trainer.planned_bytes`."""
        return await asyncio.wrap_future(self._planned_bytes(batch))

    async def evaluate(self, batches: Iterable[Batch]) -> float:
        """As `Trainer.evaluate`."""
        return await asyncio.wrap_future(self._evaluate(batches))

    async def state_dict(self) -> StateDict | None:
        """As `Trainer.state_dict`."""
        return await asyncio.wrap_future(self._state_dict())

    async def save(self, directory: FilePath, keep: int = 2) -> Path:
        """As `Trainer.save`."""
        return await asyncio.wrap_future(self._save(path_of(directory), keep))

    async def load(self, path: FilePath) -> int:
        """As `Trainer.load`."""
        return await asyncio.wrap_future(self._load(path_of(path)))

    async def export(self, path: FilePath) -> None:
        """As `Trainer.export`."""
        await asyncio.wrap_future(self._export(path_of(path)))

    async def __aenter__(self) -> Self:
        """Open the ranks. Raises UsageError: they were opened before; another time they would begin untrained."""
        if self._was_entered:
            fact = "an AsyncTrainer is opened once, and this one was opened before"
            raise UsageError(f"{fact}; make another one, and load a checkpoint to continue")
        self._was_entered = True
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await asyncio.to_thread(self._close, error)
