"""A stage with updates one step late, so that one step's gradients are summed while the next step is computed.

    theta(t + 1) = update(theta(t), g(t - 1)),  g(t) computed at theta(t)

The parameters of step t + 1 do not depend on the sum of step t. So they are ready, beside those of step t, before that
step is committed, and they stay valid if its sum fails: nothing is undone. The gradient that was summed last and is
not applied yet is part of the state, by parameter name like the rest. A microbatch's name says which of the two steps'
parameters it needs.

Source: SWARM, Appendix E; Ren et al., ZeRO-Offload, section 5.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pipelined.state.stages.donor import copy_state
from pipelined.state.tensor_specs import specs_of
from pipelined.swarm.stages.swarm_stage import BackwardResult, Microbatch, SwarmStage
from transports import Block

PENDING, STEP, SCALE = "pending", "delayed/step", "delayed/scale"
"""Names in a state: of each parameter's gradient that is not applied yet, and of the numbers that belong to them."""


class PendingGradient(NamedTuple):
    """A gradient that was summed and is not applied yet.

    Args:
        step: the step of the gradient; the learning rate is that of this step.
        total, scale: see `SwarmStage.apply`.
    """

    step: int
    total: np.ndarray
    scale: float


def with_delayed_updates(stage: SwarmStage, delayed: bool) -> SwarmStage:
    """Wrap a stage so that its updates are delayed, if they are to be."""
    return DelayedStage(stage) if delayed else stage


def final_state(stage: SwarmStage) -> Mapping[str, Any]:
    """A stage's own state with every summed gradient applied: the result of a finished training."""
    return stage.final_state() if isinstance(stage, DelayedStage) else stage.state()


def clear_all(stage: SwarmStage) -> None:
    """Set the sums of every step that a stage holds to zero."""
    if isinstance(stage, DelayedStage):
        stage.clear_both()
    else:
        stage.clear()


@dataclass
class StepState:
    """One step's parameters and sums, while the stage itself holds those of the other step."""

    state: Mapping[str, Block]
    sums: np.ndarray


class DelayedStage:
    """A `SwarmStage` around another, of two steps at once: the current one (`step`) and the next.

    Args:
        stage: holds the parameters of one of the two.

    Cost: additional memory of five times the parameters (values, two moments, sums, the pending gradient), and a copy
        of four of them when the next step begins. A return to the current step, when some of its microbatches were
        lost after it was complete, costs twice as much.
    """

    def __init__(self, stage: SwarmStage):
        self.step = 0
        self.model = stage.model
        self.maxima = stage.maxima
        self._stage, self._held_step = stage, 0
        self._other_steps = dict[int, StepState]()  # by step; empty while the other step has not begun
        self._pending: PendingGradient | None = None

    @property
    def sums(self) -> np.ndarray:
        """What was counted of the current step; see `SwarmStage`."""
        return self._stage.sums if self._held_step == self.step else self._other_steps[self.step].sums

    @sums.setter
    def sums(self, sums: np.ndarray) -> None:
        if self._held_step == self.step:
            self._stage.sums = sums
        else:
            self._other_steps[self.step].sums = sums

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """See `SwarmStage`."""
        return self._stage.expects()

    def expects_given(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """See `SwarmStage`."""
        return self._stage.expects_given()

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        """See `SwarmStage`; of the current step, or of the next."""
        self._switch_to(microbatch.step)
        return self._stage.forward(microbatch, inputs)

    def backward(
        self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool
    ) -> BackwardResult:
        """See `SwarmStage`; counted in the sums of the microbatch's own step."""
        self._switch_to(microbatch.step)
        return self._stage.backward(microbatch, inputs, given, count)

    def evaluate(self, inputs: Sequence[Block], labels: Sequence[Block] = ()) -> Sequence[Any]:
        """See `SwarmStage`; with every summed gradient applied."""
        self._switch_to(self.step + 1)
        return self._stage.evaluate(inputs, labels)

    def clear(self) -> None:
        """Set the sums of the current step to zero."""
        self._clear(self.step)

    def clear_both(self) -> None:
        """As the function `clear_all`."""
        for step in {self._held_step, *self._other_steps}:
            self._clear(step)

    def fits(self, total: np.ndarray) -> bool:
        """See `SwarmStage`."""
        return self._stage.fits(total)

    def square(self, total: np.ndarray) -> float:
        """See `SwarmStage`."""
        return self._stage.square(total)

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        """Advance to the next step by the pending gradient, and keep this total as the new pending gradient.

        What was counted of the next step becomes the sum of the current step.

        Raises:
            ValueError: the total is not of these parameters; nothing was changed.
        """
        if total.shape != self.sums.shape or total.dtype != self.sums.dtype:
            expected = f"{self.sums.dtype} {self.sums.shape}"
            raise ValueError(f"a total of another stage (got: {total.dtype} {total.shape}, expected: {expected})")
        self._switch_to(self.step + 1)
        self.step = step + 1
        self._pending = PendingGradient(step, total, scale)
        self._other_steps = {}

    def parts(self, flat: np.ndarray) -> Mapping[str, Any]:
        """See `SwarmStage`."""
        return self._stage.parts(flat)

    def state(self) -> Mapping[str, Any]:
        """See `SwarmStage`: the current step, and each parameter's pending gradient as NAME/pending."""
        state = self._stage.state() if self._held_step == self.step else self._other_steps[self.step].state
        pending = self._pending or PendingGradient(self.step - 1, np.zeros_like(self.sums), 0.0)
        gradients = {f"{name}/{PENDING}": part for name, part in self.parts(pending.total).items()}
        return {**state, **gradients, STEP: np.array([self.step]), SCALE: np.array([pending.scale])}

    def load(self, state: Mapping[str, Block]) -> None:
        """See `SwarmStage`; the sums of both steps are discarded."""
        own_specs = specs_of(self.state())
        if (specs := specs_of(state)) != own_specs:
            differing = sorted(name for name in {*specs, *own_specs} if specs.get(name) != own_specs.get(name))
            raise ValueError(f"a state of another stage ({differing[0]}; tensors that differ: {len(differing)})")
        names = [f"{name}/{PENDING}" for name in self.parts(self.sums)]
        self._stage.load({name: block for name, block in state.items() if name not in {*names, STEP, SCALE}})
        self._stage.clear()
        total = np.concatenate([Block.of(state[name]).numpy().ravel() for name in names])
        (step,), (scale,) = (Block.of(state[name]).numpy().tolist() for name in (STEP, SCALE))
        self.step = self._held_step = step
        self._other_steps = {}
        self._pending = PendingGradient(step - 1, total, scale) if scale else None

    def final_state(self) -> Mapping[str, Any]:
        """As the function `final_state`."""
        self._switch_to(self.step + 1)
        return self._stage.state()

    def _switch_to(self, step: int) -> None:
        """Have the stage hold this step's parameters and sums, and keep those of the other step aside."""
        if step == self._held_step:
            return
        if step not in (self.step, self.step + 1):
            raise ValueError(f"a step that is not held (asked: {step}, held: {self.step} and {self.step + 1})")
        step_state = StepState(copy_state(self._stage.state()), self._stage.sums.copy())
        other_state = self._other_steps.get(step)
        if other_state is None:
            self._apply_pending()
            self._stage.clear()
        else:
            self._stage.load(other_state.state)
            self._stage.sums = other_state.sums
        self._held_step, self._other_steps = step, {self._held_step: step_state}

    def _apply_pending(self) -> None:
        if self._pending is not None:
            self._stage.apply(*self._pending)

    def _clear(self, step: int) -> None:
        if self._held_step == step:
            self._stage.clear()
        else:
            self._other_steps[step].sums[:] = 0
