"""Things that one rank uses in all steps: its mailbox, its stages, its data, and the device that computes."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import KeyedRandom
from pipelined.traces.tracer import Tracer
from pipelined.training.exchange.compression import NONE
from pipelined.training.exchange.messages import StageMessages
from pipelined.training.exchange.parcels import Parcel
from pipelined.training.exchange.skips import NO_SKIPS, Skips

MicrobatchKey = tuple[int, int]
"""(pipe, microbatch): the name of a live microbatch inside one stage of one worker."""
Result = Parcel | Coroutine[Any, Any, Parcel | None] | None


class StageInterface(Protocol):
    """The interface of a stage for a worker: `training.stages.stage.Stage`, or a substitute with the right sizes.

    Inputs are messages or tensors of the feed; a transport must be able to send the results. The result of a forward
    through the last stage is the loss, and its count if it is a sum; that of a backward through the first stage is not
    sent. A stage of a team gives a coroutine of the result (see `RankContext.compute`).
    """

    def forward(self, key: MicrobatchKey, x: Any, random: KeyedRandom, targets: Any = None) -> Result:
        """Forward one microbatch, and keep what its backward needs."""

    def backward(
        self, key: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Result:
        """Backward one microbatch: accumulate the gradients of parameters, and return those of the input."""

    def backward_input(
        self, key: MicrobatchKey, gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Result:
        """The half of `backward` that returns the gradients of the input."""

    def backward_weight(self, key: MicrobatchKey) -> Coroutine[Any, Any, None] | None:
        """The half of `backward` that accumulates the gradients of parameters."""


class MicrobatchSource(Protocol):
    """The data: inputs of the first stage and targets of the last."""

    def inputs(self, step: int, microbatch: int) -> Any:
        """What the first stage takes, by the number of the microbatch among those of all groups."""

    def targets(self, step: int, microbatch: int) -> Any:
        """What the loss takes."""


@dataclass(frozen=True)
class RankContext:
    """The objects that one rank uses in all steps.

    Args:
        actor: the mailbox of the rank.
        plan: the plan of the whole job.
        stages: the stages that the rank holds, by number.
        executor: runs the computations of the stages.
        feed: the data, by global microbatch.
        tracer: records the instructions.
        seed: of dropout.
        codec: of the tensors that are sent between stages.
        recompute: whether backwards run the last stage's forward again, and so take the targets.
        skips: tensors that go past stages.
        follows_proved_order: whether a team runs weight halves in one order, too, as they move tensors.
    """

    actor: Actor
    plan: Plan
    stages: Mapping[int, StageInterface]
    executor: Executor
    feed: MicrobatchSource
    tracer: Tracer
    seed: int
    codec: str = NONE
    recompute: bool = False
    skips: Skips = NO_SKIPS
    follows_proved_order: bool = False

    @cached_property
    def messages(self) -> StageMessages:
        """Sends tensors to other stages and receives them."""
        return StageMessages(self.actor, self.codec, self.tracer)

    @cached_property
    def group(self) -> int:
        return self.plan.group_and_worker(self.actor.rank)[0]

    @cached_property
    def worker(self) -> int:
        return self.plan.group_and_worker(self.actor.rank)[1]

    @cached_property
    def member(self) -> int:
        return self.plan.member(self.actor.rank)

    def holder(self, pipe: int, stage: int) -> int:
        """The rank of this group that holds this member's piece of a stage."""
        return self.plan.holder(self.group, pipe, stage, self.member)

    def global_microbatch(self, microbatch: int) -> int:
        """The number of one of this group's microbatches among those of all groups."""
        return self.plan.global_microbatch(self.group, microbatch)

    async def compute(self, op: str, work: Callable[[], Any], report_at_once: bool = True) -> tuple[Any, float, float]:
        """Compute on the executor; see `Executor.run`.

        Args:
            work: returns the result, or a coroutine of it, which runs computations of its own on the executor.
        """
        result, start, end = await self.executor.run(op, work, report_at_once)
        if isinstance(result, Coroutine):
            result, end = await result, self.executor.clock.now()
            self.executor.took[op] = end - start
        return result, start, end
