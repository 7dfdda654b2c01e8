"""A stage whose updates come one step late, so that one step's gradients are summed while the next step is computed.

    theta(t + 1) = update(theta(t), g(t - 1)),  g(t) computed at theta(t)

The one rule: the parameters of step t + 1 follow from what stood before step t was summed. So they are there, beside
those of step t, before that is decided, and whatever becomes of its sum they stay right: nothing is ever undone. The
gradient that was summed last and not applied yet is part of the state, by parameter name like all of it.

It must not know of peers or rounds: which parameters are asked for is in a microbatch's name.

Source: SWARM, Appendix E; Ren et al., ZeRO-Offload, section 5.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pipelined.state.donor import copied
from pipelined.state.manifest import layout_of
from pipelined.swarm.stages.stage import Microbatch, Passed, SwarmStage
from transports import Block

PENDING, STEP, SCALE = "pending", "delayed/step", "delayed/scale"
"""Names in a state: of a parameter's gradient that is not applied yet, and of the numbers that go with all of them."""


class Pending(NamedTuple):
    """A gradient that was summed and not applied yet.

    Args:
        step: the step of the gradient; the learning rate is that of this step.
        total, scale: see `SwarmStage.apply`.
    """

    step: int
    total: np.ndarray
    scale: float


def late(stage: SwarmStage, delayed: bool) -> SwarmStage:
    """A stage as a swarm trains it whose updates are delayed, or are not."""
    return DelayedStage(stage) if delayed else stage


def settled(stage: SwarmStage) -> Mapping[str, Any]:
    """A stage's own state with every gradient applied that was summed: what a finished training comes to."""
    return stage.settled() if isinstance(stage, DelayedStage) else stage.state()


@dataclass
class StepState:
    """One step's parameters and sums, while the stage itself holds another's."""

    state: Mapping[str, Block]
    sums: np.ndarray


class DelayedStage:
    """A `SwarmStage` around another, of two steps at once: the one that stands (`step`), and the next.

    Args:
        stage: holds the parameters of one of the two.

    Cost: memory of five times the parameters more (values, two moments, sums, the pending gradient), and a copy of
        four of them when the next step begins. Going back to the step that stands, where some of its microbatches
        were lost after it was complete, costs twice as much.
    """

    def __init__(self, stage: SwarmStage):
        self.step, self.model = 0, stage.model
        self._stage, self._holds = stage, 0
        self._other: StepState | None = None
        self._pending: Pending | None = None

    @property
    def sums(self) -> np.ndarray:
        """What was counted of the step that stands; see `SwarmStage`."""
        return self._stage.sums if self._holds == self.step else self._other.sums

    @sums.setter
    def sums(self, sums: np.ndarray) -> None:
        if self._holds == self.step:
            self._stage.sums = sums
        else:
            self._other.sums = sums

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """See `SwarmStage`."""
        return self._stage.expects()

    def expects_given(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """See `SwarmStage`."""
        return self._stage.expects_given()

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        """See `SwarmStage`; of the step that stands, or of the next."""
        self._hold(microbatch.step)
        return self._stage.forward(microbatch, inputs)

    def backward(self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool) -> Passed:
        """See `SwarmStage`; counted in the sums of the microbatch's own step."""
        self._hold(microbatch.step)
        return self._stage.backward(microbatch, inputs, given, count)

    def evaluate(self, inputs: Sequence[Block], labels: Sequence[Block] = ()) -> Sequence[Any]:
        """See `SwarmStage`; with every gradient applied that was summed."""
        self._hold(self.step + 1)
        return self._stage.evaluate(inputs, labels)

    def clear(self) -> None:
        """Set the sums of the step that stands to zero."""
        self._clear(self.step)

    def clear_next(self) -> None:
        """Set the sums of the step after it to zero."""
        if self._other is not None:
            self._clear(self.step + 1)

    def square(self, total: np.ndarray) -> float:
        """See `SwarmStage`."""
        return self._stage.square(total)

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        """Go on to the next step with the gradient of the one before, and keep this one until then.

        What was counted of the next step is its sum from now on.

        Raises:
            ValueError: the total is not of these parameters; nothing was changed.
        """
        if total.shape != self.sums.shape or total.dtype != self.sums.dtype:
            expected = f"{self.sums.dtype} {self.sums.shape}"
            raise ValueError(f"a total of another stage (got: {total.dtype} {total.shape}, expected: {expected})")
        self._hold(self.step + 1)
        self.step, self._pending, self._other = step + 1, Pending(step, total, scale), None

    def parts(self, flat: np.ndarray) -> Mapping[str, Any]:
        """See `SwarmStage`."""
        return self._stage.parts(flat)

    def state(self) -> Mapping[str, Any]:
        """See `SwarmStage`: the step that stands, and each parameter's pending gradient as NAME/pending."""
        held = self._stage.state() if self._holds == self.step else self._other.state
        pending = self._pending or Pending(self.step - 1, np.zeros_like(self.sums), 0.0)
        gradients = {f"{name}/{PENDING}": part for name, part in self.parts(pending.total).items()}
        return {**held, **gradients, STEP: np.array([self.step]), SCALE: np.array([pending.scale])}

    def load(self, state: Mapping[str, Block]) -> None:
        """See `SwarmStage`; what was counted of either step is gone."""
        mine = layout_of(self.state())
        if (got := layout_of(state)) != mine:
            strange = sorted(name for name in {*got, *mine} if got.get(name) != mine.get(name))
            raise ValueError(f"a state of another stage ({strange[0]}; tensors that differ: {len(strange)})")
        names = [f"{name}/{PENDING}" for name in self.parts(self.sums)]
        self._stage.load({name: block for name, block in state.items() if name not in {*names, STEP, SCALE}})
        self._stage.clear()
        total = np.concatenate([Block.of(state[name]).numpy().ravel() for name in names])
        (step,), (scale,) = (Block.of(state[name]).numpy().tolist() for name in (STEP, SCALE))
        self.step = self._holds = step
        self._other, self._pending = None, Pending(step - 1, total, scale) if scale else None

    def settled(self) -> Mapping[str, Any]:
        """See the function of this name."""
        self._hold(self.step + 1)
        return self._stage.state()

    def _hold(self, step: int) -> None:
        """Have the stage hold the parameters and the sums of this step, and put those of the other aside."""
        if step == self._holds:
            return
        if step not in (self.step, self.step + 1):
            raise ValueError(f"a step that is not held (asked: {step}, held: {self.step} and {self.step + 1})")
        aside, other = StepState(copied(self._stage.state()), self._stage.sums.copy()), self._other
        if other is None:
            self._apply_pending()
            self._stage.clear()
        else:
            self._stage.load(other.state)
            self._stage.sums = other.sums
        self._holds, self._other = step, aside

    def _apply_pending(self) -> None:
        if self._pending is not None:
            self._stage.apply(*self._pending)

    def _clear(self, step: int) -> None:
        if self._holds == step:
            self._stage.clear()
        else:
            self._other.sums[:] = 0
