"""`pipelined.Trainer`: a user's own training loop over a model that is cut into stages.

    with pp.Trainer(model, plan, optimizer, loss) as trainer:       # mpirun -n 4 python mine.py
        for batch in batches:
            report = trainer.step(batch)

Every rank runs the same loop. Inside a running event loop, as in a notebook, each call is awaited.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from pipelined.actors.agree import agree
from pipelined.api.background import BackgroundRanks, check_world
from pipelined.api.batch import Batch, BatchError, slice_rows
from pipelined.api.feed import StepFeed
from pipelined.api.laboratory.planning import Planned
from pipelined.api.rank import RankSession, TrainingJob
from pipelined.api.sequential import Loss
from pipelined.api.user_model import Layers, bind
from pipelined.api.user_optimizer import OptimizerBuilder, UserOptimizer
from pipelined.checkpoints.checkpoint import require_kept
from pipelined.process.launch import detect
from pipelined.programs.plan import Plan
from pipelined.training.compression import NONE
from pipelined.training.step_report import StepReport
from pipelined.training.trainer import Numerics


class Trainer:
    """Trains a model by steps that the user's loop requests.

    Args:
        model: a `Sequential`, or what it is made of.
        plan: the arrangement, or the result of `pipelined.plan`, which also sets `recompute`. Its world size must be
            the number of ranks that were started. Without a launcher all ranks run in this process.
        optimizer: builds an optimizer of torch from a list of parameters; called on each rank with its own.
        loss: the mean loss of one microbatch, from its outputs and targets.
        example: the inputs of one microbatch, to weigh layers by their operations and to check that they chain;
            without it the layers are weighed by their parameters alone.
        dtype, autocast, recompute, seed, clip, lr_scheduler, all_reduce, compress, transport: as in `pipelined.train`.
    Raises:
        UsageError: model, plan, optimizer and ranks do not fit together.

    A step accumulates the gradients of the plan's microbatches. An exception that leaves the `with` block ends all
    ranks. A call costs two hand-overs between threads beside the same step inside `pipelined.train`.
    """

    def __init__(
        self,
        model: Layers,
        plan: Plan | Planned,
        optimizer: OptimizerBuilder,
        loss: Loss,
        *,
        example: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        autocast: bool = False,
        recompute: bool = False,
        seed: int = 0,
        clip: float = 0.0,
        lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
        all_reduce: str = "auto",
        compress: str = NONE,
        transport: str = "auto",
    ):
        launch = detect(os.environ, transport)
        planned, self.plan = (plan, plan.plan) if isinstance(plan, Planned) else (None, plan)
        check_world(launch, self.plan.world_size)
        self._feed = StepFeed(self.plan.rows, self.plan.total_microbatches, dtype)
        self._model = bind(model, loss, seed, example)
        if planned is not None:
            planned.content.require(Path("plan"), self._model.identity(), launch.world_size)
            recompute = recompute or planned.recompute
        job = TrainingJob(
            model=self._model,
            feed=self._feed,
            plan=self.plan,
            optimizer=partial(UserOptimizer, optimizer, clip, lr_scheduler),
            numerics=Numerics(dtype, autocast, recompute, all_reduce, compress),
            seed=seed,
        )
        self._ranks = BackgroundRanks(launch, job)
        self._done = 0

    @property
    def rank(self) -> int:
        """The rank of this process, for what one rank should print alone; 0 where all ranks run in it."""
        return self._ranks.rank

    @property
    def steps(self) -> int:
        """The steps done, those before a loaded checkpoint included."""
        return self._done

    def step(self, batch: Batch) -> Any:
        """Train one step on (inputs, targets) of a whole step, equal on all ranks.

        Without a flush the pipe is drained behind each step; `pipelined.train` lets such steps overlap.

        Returns: a `StepReport` with the mean loss and the gradient norm; inside a running event loop an awaitable.
        Raises:
            BatchError, ModelError: the batch has other rows than the plan, or the model cannot take its microbatches;
                nothing is computed.
            UsageError: loss or gradient norm is not finite; nothing is updated.
        """
        self._feed.check(batch)
        self._model.check_inputs(slice_rows(batch[0], 0, self.plan.rows))

        async def work(rank: RankSession) -> StepReport:
            self._feed.give(rank.done, batch)
            report = await rank.train(range(rank.done, rank.done + 1), lambda: False, lambda report: None)
            self._done = rank.done
            return report

        return self._ranks.call("step", work)

    def evaluate(self, batches: Iterable[Batch]) -> Any:
        """The mean loss over (inputs, targets) of any number of rows, in evaluation mode; the same on all ranks.

        Returns: a float; inside a running event loop an awaitable of it.
        Raises:
            BatchError, ModelError: there is nothing to evaluate, or the model cannot take it; nothing is computed.
        """
        windows = [window for batch in batches for window in self._feed.windows(batch)]
        if not windows:
            raise BatchError("there are no rows to evaluate (batches: empty); give at least one (inputs, targets)")
        for inputs, _ in windows:
            self._model.check_inputs(inputs)
        return self._ranks.call("evaluate", lambda rank: rank.evaluate(windows))

    def state_dict(self) -> Any:
        """Every parameter and buffer by name, as the same `nn.Sequential` names them, on rank 0; None elsewhere."""
        return self._ranks.call("state_dict", lambda rank: rank.state_dict())

    def save(self, directory: str | os.PathLike[str], keep: int = 2) -> Any:
        """Save model, optimizer and the number of steps as a checkpoint, which any arrangement can load.

        Args:
            directory: the directory of checkpoints; from now on no other run can save there.
            keep: the number of checkpoints to keep.
        Returns: the path of the checkpoint on rank 0.
        Raises:
            UsageError: another run saves there, or it holds checkpoints of a run that was not loaded here; `keep` is
                below 1.
        """
        require_kept(keep)

        async def work(rank: RankSession) -> Path:
            await rank.claim(Path(directory), rank.loaded)
            return await rank.save(Path(directory), rank.done, keep)

        return self._ranks.call("save", work)

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Load a checkpoint, or the newest of a directory of checkpoints, saved by any arrangement of this model.

        Returns: the number of steps done, so that the loop can continue its data there.
        """

        async def work(rank: RankSession) -> int:
            self._done = await rank.load(Path(path))
            return self._done

        return self._ranks.call("load", work)

    def export(self, path: str | os.PathLike[str]) -> Any:
        """Write the state of `state_dict` to a file, which `torch.load` reads on a machine without this package."""

        async def work(rank: RankSession) -> None:
            state = await rank.state_dict()

            async def write() -> None:
                if state is not None:
                    await asyncio.to_thread(torch.save, state, path)

            await agree(rank.trainer.context.actor.transport, "exported", write())

        return self._ranks.call("export", work)

    def close(self) -> None:
        """End the job in good order; every rank calls this, or leaves the `with` block."""
        self._ranks.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.close(error)
