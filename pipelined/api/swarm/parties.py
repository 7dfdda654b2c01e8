"""A peer and a trainer of a user's model, from joining the swarm to their end."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from pipelined.api.data.feed import Feed, JobFeed, job_feed, steps_in
from pipelined.api.swarm.training import UserProgram, UserTask, UserTraining, spec_of
from pipelined.api.whole_run import Trained
from pipelined.errors import UsageError, whole
from pipelined.membership.connection import LocalMember
from pipelined.process.reporting.progress import Say
from pipelined.swarm.process.observer import snapshot
from pipelined.swarm.process.peer_process import open_peer
from pipelined.swarm.process.roles import TrainerJob, serve, train
from pipelined.swarm.process.session import SwarmAddress, SwarmSession
from pipelined.swarm.records.committed_steps import StepCommitted, StepEvent, StepsBegan
from pipelined.swarm.settings import PeerSettings, SharedSettings, TrainerSettings
from pipelined.swarm.stages.swarm_stage import Microbatch
from pipelined.training.models.batch import Batch
from pipelined.training.segments.step_report import StepReport
from transports import Block

KEPT_STEPS = 4
"""Batches kept in memory: the current step's, and those of recent steps that may be computed again."""


@dataclass(frozen=True)
class TrainerOptions(TrainerSettings):
    """The settings of one trainer; each field as in `train`."""

    report: Callable[[StepReport], None] = lambda report: None

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", whole("slots", self.slots, 1))


class StepData:
    """The microbatches of a swarm's trainer, by step and index.

    Args:
        batches: (inputs, targets) of each whole step, or a `Feed`. After a rollback batches are read from the
            beginning, which a generator cannot; a feed gives any step.
        microbatches: of a step.
    """

    def __init__(self, batches: Iterable[Batch] | Feed, microbatches: int, dtype: torch.dtype):
        self._batches, self._microbatches, self._dtype = batches, microbatches, dtype
        self._newest_step = 0
        self._feed = self._open_feed()
        self._read_lock = asyncio.Lock()
        self.rows = self._feed.rows_each(microbatches)

    async def __call__(self, microbatch: Microbatch) -> tuple[tuple[torch.Tensor], tuple[torch.Tensor]]:
        """See `read`; it runs in a thread, because after a rollback it may read many batches again."""
        async with self._read_lock:
            return await asyncio.to_thread(self.read, microbatch)

    def read(self, microbatch: Microbatch) -> tuple[tuple[torch.Tensor], tuple[torch.Tensor]]:
        """The inputs and the targets of a microbatch.

        Raises:
            UsageError: the batches end, cannot be read again, or are not one tensor each.
        """
        if not isinstance(self._batches, Feed) and microbatch.step <= self._newest_step - KEPT_STEPS:
            if iter(self._batches) is self._batches:
                fact = f"step {microbatch.step} is computed again, and its batch was read before"
                raise UsageError(f"{fact}; give a list or a loader, which can begin again, or a pp.Feed")
            self._newest_step = 0
            self._feed = self._open_feed()
        self._newest_step = max(self._newest_step, microbatch.step)
        inputs = _tensor(self._feed.inputs(microbatch.step, microbatch.index), "inputs")
        return (inputs,), (_tensor(self._feed.targets(microbatch.step, microbatch.index), "targets"),)

    def first_microbatch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and the targets of the first microbatch of all."""
        (inputs,), (targets,) = self.read(Microbatch(0, 0))
        return inputs, targets

    def _open_feed(self) -> JobFeed:
        """The microbatches from the first step on."""
        feed = job_feed(self._batches, KEPT_STEPS)
        feed.configure(feed.rows_each(self._microbatches), self._dtype, KEPT_STEPS)
        return feed


@dataclass(frozen=True, kw_only=True)
class SwarmSettings(SharedSettings):
    """What a swarm trains, by the arguments of a call; each field as in `train`."""

    depth: int
    microbatches: int | None = None
    steps: int | None = None
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    seed: int = 0
    clip: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", whole("depth", self.depth, 1))
        object.__setattr__(self, "seed", whole("seed", self.seed))

    def prepare(self, batches: Iterable[Batch] | Feed, program: UserProgram) -> "tuple[StepData, UserTraining]":
        """The microbatches and the training of a trainer. Raises UsageError: they do not fit one another."""
        steps = steps_in(batches) if self.steps is None else self.steps
        microbatches = 2 * self.depth if self.microbatches is None else whole("microbatches", self.microbatches, 1)
        data = StepData(batches, microbatches, self.dtype)
        x, y = data.first_microbatch()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"microbatches": microbatches, "steps": steps, "dtype": str(self.dtype).removeprefix("torch.")}
        training = UserTraining(program, UserTask(**values, rows=data.rows, x=spec_of(x), y=spec_of(y)))
        training.check_first(x, y)
        return data, training


async def run_user_peer(
    training_of: Callable[[UserTask], UserTraining],
    address: SwarmAddress,
    settings: PeerSettings,
    *,
    stop: asyncio.Event,
    say: Say,
) -> None:
    """Serve a stage until `stop` is set; see `serve`."""

    def session_of(record: bytes) -> SwarmSession:
        task = UserTask.unpack(record)
        if settings.stage is not None and not 0 <= settings.stage < task.depth:
            raise UsageError(f"there is no stage {settings.stage} (depth: {task.depth}); take one below the depth")
        return _session_of(training_of(task))

    await serve(address, session_of, partial(open_peer, settings), device=settings.device, stop=stop, say=say)


async def run_user_trainer(
    training: UserTraining,
    data: StepData,
    address: SwarmAddress,
    options: TrainerOptions,
    *,
    stop: asyncio.Event,
    say: Say,
) -> Trained:
    """Train until the last step, or until `stop` is set, then fetch the model; see `train`."""
    session = _session_of(training)
    steps = training.task.steps
    results = StepResults(options.report)

    async def whole_state(local: LocalMember) -> dict[str, torch.Tensor]:
        stages = await snapshot(local, session)
        return await asyncio.to_thread(training.whole_state, [_tensors(state) for _, state in stages])

    job = TrainerJob(
        task=training.task,
        session=session,
        data=data,
        steps=steps,
        slots=options.slots,
        resume=options.resume,
        given_as="arguments",
    )
    state = await train(address, job, whole_state, stop=stop, on_step=results.add, say=say)
    return Trained(results.losses, results.step, stopped=state is None, state=state)


def _session_of(training: UserTraining) -> SwarmSession:
    return SwarmSession(training, training.rules(), dict(training.model.identity()), text="")


class StepResults:
    """The losses of the steps that this trainer saw. A rollback removes those of the steps that are trained again.

    Args:
        report: called with the report of each step.

    Attributes:
        step: steps done, those of earlier runs included.
    """

    def __init__(self, report: Callable[[StepReport], None]):
        self.losses: list[float] = []
        self.step = 0
        self._report, self._first_step = report, 0

    def add(self, event: StepEvent) -> None:
        """Take a commit or a rollback."""
        match event:
            case StepsBegan(head):
                self.step = head.step
                self._first_step = min(self._first_step, head.step) if self.losses else head.step
                del self.losses[head.step - self._first_step :]
            case StepCommitted(head, seconds):
                self.step = head.step
                self.losses.append(head.loss)
                step = head.step - 1
                rate = float("nan")
                self._report(StepReport(step, head.loss, head.norm, rate, seconds, idle_fraction=0.0, stop=False))


def _tensor(tree: Any, what: str) -> torch.Tensor:
    if not isinstance(tree, torch.Tensor):
        fact = f"the {what} of a microbatch are a {type(tree).__name__}, and a swarm takes one tensor"
        raise UsageError(f"{fact}; pack them into one, or train with pipelined.train")
    return tree.contiguous()


def _tensors(state: Any) -> dict[str, torch.Tensor]:
    return {name: Block.of(value).torch() for name, value in state.items()}
