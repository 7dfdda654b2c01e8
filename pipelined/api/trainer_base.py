"""The base of the trainers: the calls of a user's own training loop, each sent to the ranks of this process."""

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import torch

from pipelined.api.arrangement import require_ranks
from pipelined.api.background import BackgroundRanks, RankWork
from pipelined.api.data.batches import StepFeed
from pipelined.api.job_request import JobRequest
from pipelined.api.planning.planned import Planned, as_plan
from pipelined.api.rank_session import RankSession
from pipelined.api.user_optimizer import OptimizerBuilder, SchedulerBuilder
from pipelined.errors import UsageError, whole
from pipelined.process.uncaught import UncaughtErrors
from pipelined.programs.plan import Plan
from pipelined.schedules import KnobValue, SomeSchedule
from pipelined.state.checkpoints.checkpoint import require_keep
from pipelined.training.exchange.compression import NONE
from pipelined.training.exchange.parcels import Tree
from pipelined.training.models.batch import Batch, slice_rows
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers
from pipelined.training.segments.step_report import StepReport

T = TypeVar("T")
StateDict = dict[str, torch.Tensor]
"""Every parameter and buffer of a model by name."""


class TrainerBase:
    """What `Trainer` and `AsyncTrainer` share: each call returns a future. Arguments: as of `Trainer`."""

    def __init__(
        self, model: Layers, plan: Plan | Planned | None = None, *, loss: Loss, optimizer: OptimizerBuilder,
        example: Tree | None = None, schedule: SomeSchedule | None = None,
        depth: int | None = None, width: int | None = None, microbatches: int | None = None,
        tensor: int | str = 1, layout: str | None = None, recompute: bool | None = None, compile: bool = False,
        dtype: torch.dtype = torch.float32, autocast: bool | torch.dtype = False, seed: int = 0,
        clip: float = 0.0, lr_scheduler: SchedulerBuilder | None = None,
        all_reduce: str = "auto", exact_sums: bool = False, compress: str = NONE,
        shard_optimizer: bool = False, offload_optimizer: bool = False,
        delayed_update: bool = False, masters: torch.dtype | None = None,
        transport: str = "auto", share_devices: bool = False, **knobs: KnobValue,
    ):  # fmt: skip
        self._uncaught = UncaughtErrors("pipelined.Trainer", transport)
        request = JobRequest.of_call(
            type(self), model=model, loss=loss, optimizer=optimizer,
            schedule=schedule, depth=depth, width=width, microbatches=microbatches,
            tensor=tensor, layout=layout, recompute=recompute, compile=compile,
            dtype=dtype, autocast=autocast, seed=seed, clip=clip, lr_scheduler=lr_scheduler,
            all_reduce=all_reduce, exact_sums=exact_sums, compress=compress, shard_optimizer=shard_optimizer,
            offload_optimizer=offload_optimizer, delayed_update=delayed_update, masters=masters,
            transport=transport, share_devices=share_devices, knobs=knobs,
        )  # fmt: skip
        arrangement = request.arrangement
        self._launch = request.launch
        plan = arrangement.plan_of_example(self._launch, example) if plan is None else arrangement.require_open(plan)
        self.plan = as_plan(plan)
        require_ranks(self.plan, self._launch)
        self._feed = StepFeed(self.plan.rows, self.plan.total_microbatches, dtype)
        self._job = request.arrange(plan, self._feed, example)
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

    def __repr__(self) -> str:
        plan = self.plan
        sizes = f"depth={plan.depth}, width={plan.width}, microbatches={plan.microbatches}"
        return f"{type(self).__name__}({plan.schedule}, {sizes}, rank={self.rank}, steps={self.steps})"

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
        self._job.model.check_inputs(slice_rows(batch[0], 0, self.plan.rows))

        async def work(rank: RankSession) -> StepReport:
            self._feed.give(rank.done, batch)
            report = await rank.train(range(rank.done, rank.done + 1), lambda: False, lambda report: None)
            self._done = rank.done
            return report

        return self._call("step", work)

    def _planned_bytes(self, batch: Batch) -> Future[int | None]:
        self._feed.check(batch)
        example = slice_rows(batch, 0, self.plan.rows)
        return self._call("planned_bytes", lambda rank: rank.planned_bytes(example))

    def _evaluate(self, batches: Iterable[Batch]) -> Future[float]:
        windows = self._feed.windows(batches)
        for inputs, _ in windows:
            self._job.model.check_inputs(inputs)
        return self._call("evaluate", lambda rank: rank.evaluate(windows))

    def _state_dict(self) -> Future[StateDict | None]:
        return self._call("state_dict", lambda rank: rank.state_dict())

    def _save(self, directory: Path, keep: int) -> Future[Path]:
        keep = whole("keep", keep)
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
