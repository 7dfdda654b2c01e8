"""`pipelined.Trainer` and `AsyncTrainer`: a user's own training loop over a model that is cut into stages.

Every rank runs the same loop. With `AsyncTrainer` each call is awaited, and the event loop runs on meanwhile.
"""

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import torch

from pipelined.api.arrangement import require_plan, require_ranks
from pipelined.api.background import BackgroundRanks, RankWork
from pipelined.api.data.batches import StepFeed
from pipelined.api.laboratory.find_plan import Planned
from pipelined.api.rank import RankSession
from pipelined.api.training_request import TrainingRequest
from pipelined.api.user_optimizer import OptimizerBuilder, SchedulerBuilder, UserOptimizer
from pipelined.errors import FilePath, UsageError, path_of
from pipelined.process.launch import detect
from pipelined.process.uncaught import UncaughtErrors
from pipelined.programs.plan import Plan
from pipelined.state.checkpoints.checkpoint import require_keep
from pipelined.training.exchange.compression import NONE
from pipelined.training.exchange.stream import Tree
from pipelined.training.job import Numerics, products_dtype
from pipelined.training.models.batch import Batch, slice_rows
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers
from pipelined.training.segments.step_report import StepReport

T = TypeVar("T")
StateDict = dict[str, torch.Tensor]
"""Every parameter and buffer of a model by name."""


class LoopTrainer:
    """The calls of a user's loop; `Trainer` waits for each, `AsyncTrainer` awaits it. Arguments: as of `Trainer`."""

    def __init__(
        self, model: Layers, plan: Plan | Planned, *, loss: Loss, optimizer: OptimizerBuilder,
        example: Tree | None = None,
        layout: str | None = None, recompute: bool | None = None, compile: bool = False,
        dtype: torch.dtype = torch.float32, autocast: bool | torch.dtype = False, seed: int = 0,
        clip: float = 0.0, lr_scheduler: SchedulerBuilder | None = None,
        all_reduce: str = "auto", exact_sums: bool = False, compress: str = NONE,
        shard_optimizer: bool = False, offload_optimizer: bool = False,
        delayed_update: bool = False, masters: torch.dtype | None = None,
        transport: str = "auto", share_devices: bool = False,
    ):  # fmt: skip
        self._uncaught = UncaughtErrors("pipelined.Trainer", transport)
        self._launch = replace(detect(os.environ, transport), share_devices=share_devices)
        require_plan(plan, {"recompute": recompute, "layout": layout})
        planned, self.plan = (plan, plan.plan) if isinstance(plan, Planned) else (None, plan)
        require_ranks(self.plan, self._launch)
        training = TrainingRequest(
            model=model, loss=loss, make_settings=partial(UserOptimizer, optimizer, clip, lr_scheduler),
            layout=layout, seed=seed,
            numerics=Numerics(
                compile=compile, dtype=dtype, autocast=products_dtype(autocast),
                all_reduce=all_reduce, exact_sums=exact_sums, compress=compress, shard_optimizer=shard_optimizer,
                offload_optimizer=offload_optimizer, delayed_update=delayed_update, masters=masters,
            ),
        )  # fmt: skip
        self._feed = StepFeed(self.plan.rows, self.plan.total_microbatches, dtype)
        self._model = training.bind(example, self.plan)
        if planned is not None:
            planned.content.require(Path("plan="), self._model.identity(), self._launch.world_size)
        self._job = training.arranged(self._model, self._feed, self.plan, planned.recompute if planned else recompute)
        self._ranks: BackgroundRanks | None = None
        self._done = 0
        self._begin()

    @property
    def rank(self) -> int:
        """The rank of this process, for what one rank should print alone; 0 where all ranks run in it."""
        return self._launch.rank

    @property
    def steps(self) -> int:
        """The steps done, those before a loaded checkpoint included."""
        return self._done

    def _begin(self) -> None:
        """Open the ranks where the constructor may block."""

    def _open(self) -> None:
        self._ranks = BackgroundRanks(self._launch, self._job)

    def _close(self, error: BaseException | None = None) -> None:
        if self._ranks is not None:
            self._ranks.close(error)
        self._uncaught.close(error, is_printed=self._ranks is not None)

    def _call(self, name: str, work: RankWork[T]) -> Future[T]:
        if self._ranks is None:
            raise UsageError(f"{name}() of an AsyncTrainer that is not open; call it inside its `async with` block")
        return self._ranks.call(name, work)

    def _step(self, batch: Batch) -> Future[StepReport]:
        self._feed.check(batch)
        self._model.check_inputs(slice_rows(batch[0], 0, self.plan.rows))

        async def work(rank: RankSession) -> StepReport:
            self._feed.give(rank.done, batch)
            report = await rank.train(range(rank.done, rank.done + 1), lambda: False, lambda report: None)
            self._done = rank.done
            return report

        return self._call("step", work)

    def _planned_bytes(self, batch: Batch) -> Future[int | None]:
        self._feed.check(batch)
        example = slice_rows(batch[0], 0, self.plan.rows), slice_rows(batch[1], 0, self.plan.rows)
        return self._call("planned_bytes", lambda rank: rank.planned_bytes(example))

    def _evaluate(self, batches: Iterable[Batch]) -> Future[float]:
        windows = self._feed.windows(batches)
        for inputs, _ in windows:
            self._model.check_inputs(inputs)
        return self._call("evaluate", lambda rank: rank.evaluate(windows))

    def _state_dict(self) -> Future[StateDict | None]:
        return self._call("state_dict", lambda rank: rank.state_dict())

    def _save(self, directory: Path, keep: int) -> Future[Path]:
        require_keep(keep)

        async def work(rank: RankSession) -> Path:
            await rank.claim(directory, rank.loaded)
            return await rank.save(directory, rank.done, keep)

        return self._call("save", work)

    def _load(self, path: Path) -> Future[int]:
        async def work(rank: RankSession) -> int:
            self._done = await rank.load(path)
            return self._done

        return self._call("load", work)

    def _export(self, path: Path) -> Future[None]:
        return self._call("export", lambda rank: rank.export(path))


class Trainer(LoopTrainer):
    """Trains a model by the steps that the user's loop requests; each call returns when the ranks have done it.

    Args:
        model: a `Sequential` or what it is made of, or a module that `pipelined.trace` has traced.
        plan: the arrangement, or the result of `pipelined.plan`, which also sets `recompute` and `layout`. Its world
            size must be the number of ranks that were started. Without a launcher all ranks run in this process.
        loss: the mean loss of one microbatch, from its outputs and targets.
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
            UsageError: loss or gradient norm is not finite. With a flush nothing is updated; without one stages are, so
                load a checkpoint before the next step.
        """
        return self._step(batch).result()

    def planned_bytes(self, batch: Batch) -> int | None:
        """Payload bytes that all ranks together should send in a step, worked out before the first one.

        `StepReport.nbytes` has those that they sent. Not known where a layer cannot compute shapes without values. With
        `shard_optimizer` the first step sends less, as no weights were updated before it; with `exact_sums` a step
        sends its part of the sums twice where its grids do not fit, as those of the first one.

        Args:
            batch: as of `step`; its values do not matter.
        Returns: the bytes on rank 0; None where they are not known, and on other ranks.
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


class AsyncTrainer(LoopTrainer):
    """A `Trainer` for a program with an event loop: opened by `async with`, its calls awaited. Arguments: as there."""

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
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await asyncio.to_thread(self._close, error)
