"""Forward and backward passes at a peer, and evaluations, as trainers request them.

A gradient is counted once for each microbatch and step, and counts are final once they were reported to a leader. Every
request is checked before the device computes anything.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

from pipelined.aio.events import warn
from pipelined.swarm.messaging.fields import Malformed
from pipelined.swarm.messaging.reasons import Reason
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.work import Backward, Evaluate, Forward, Gradients, Outputs, PassRequest
from pipelined.swarm.stages.codec import Coded, Coding
from pipelined.swarm.stages.stage import Microbatch, NotFinite
from transports import Block, WireError
from transports.rpc import Rejected
from transports.wire.arrays import SIZES

T = TypeVar("T")
ArrayLayouts = Sequence[tuple[str, tuple[int, ...]]]
CODEC_BYTES = 1 << 14
"""Most bytes that a codec adds to an array of any size."""


class Passes:
    """The passes of one replica.

    Attributes:
        done: number of passes of each kind.
    """

    def __init__(self, state: StageState, coding: Coding):
        self._state, self._coding = state, coding
        self.done = {"forwards": 0, "backwards": 0}

    async def forward(self, request: Forward) -> Outputs:
        """Compute the outputs of one microbatch.

        Raises:
            Rejected: "step passed", "behind", "other lineage" (all with this peer's step), "left", or "not finite": the
                result.
            Malformed: no such microbatch, or not the arrays that the stage takes.
        """
        which = await self._which(request, range(self._state.rules.batch), ahead=True)
        inputs = await self._arrays(request.inputs, self._state.stage.expects())
        outputs = await self._compute("forward", which, lambda: self._state.stage.forward(which, inputs))
        return Outputs(await self._packed(self._coding, outputs, f"outputs of microbatch {which.index}"))

    async def backward(self, request: Backward) -> Gradients:
        """Compute the gradients of one microbatch's inputs; count the parameters' gradients unless already counted.

        Raises:
            Rejected, Malformed: as `forward`.
        """
        which = await self._which(request, range(self._state.rules.batch), ahead=True)
        inputs = await self._arrays(request.inputs, self._state.stage.expects())
        given = await self._arrays(request.given, self._state.stage.expects_given())

        def work() -> tuple[Any, bool]:
            ledger = self._state.ledger_of(which.step)
            count = request.count and ledger.frozen is None and which.index not in ledger.losses
            passed = self._state.stage.backward(which, inputs, given, count)
            if count:
                ledger.losses[which.index] = passed.loss or 0.0
            return passed, which.index in ledger.losses

        passed, counted = await self._compute("backward", which, work)
        coded = await self._packed(self._coding, passed.gradients, f"gradients of microbatch {which.index}")
        return Gradients(coded, counted)

    async def evaluate(self, request: Evaluate) -> Outputs:
        """Compute the outputs of one microbatch of validation data; on the last stage, its samples' losses.

        Raises:
            Rejected, Malformed: as `forward`.
        """
        rules, last = self._state.rules, self._state.index == self._state.rules.stages - 1
        which = await self._which(request, range(rules.batch, rules.batch + rules.eval_batch))
        if (request.labels is not None) != last:
            raise Malformed(f"labels at another stage than the last, or none at the last (stage: {self._state.index})")
        groups = [await self._arrays(request.inputs, self._state.stage.expects())]
        if request.labels is not None:
            groups.append(await self._arrays(request.labels, self._state.stage.expects_given(), fewer=True))
        outputs = await self._compute("forward", which, lambda: self._state.stage.evaluate(*groups))
        coding = Coding() if last else self._coding
        return Outputs(await self._packed(coding, outputs, f"outputs of microbatch {which.index}"))

    @property
    def most_bytes(self) -> int:
        """Largest size of one group of arrays, decoded, in bytes."""
        layouts = [*self._state.stage.expects(), *self._state.stage.expects_given()]
        return CODEC_BYTES + 2 * max(prod(shape) * SIZES[dtype] for dtype, shape in layouts)

    async def _packed(self, coding: Coding, arrays: Sequence[Any], what: str) -> Coded:
        """The arrays as they are sent: without the codec if it cannot carry their values, which are finite."""
        try:
            return await coding.pack(arrays, what)
        except WireError as error:
            warn("arrays go uncoded", peer=self._state.name, stage=self._state.index, codec=coding.codec, why=error)
            return tuple(arrays), None

    async def _compute(self, op: str, which: Microbatch, work: Callable[[], T]) -> T:
        def current() -> T:
            if self._state.given_up:
                raise Rejected(Reason.LEFT)
            if which.step < self._state.step:
                raise Rejected(Reason.STEP_PASSED, step=self._state.step)
            try:
                return work()
            except NotFinite as error:
                raise Rejected(Reason.NOT_FINITE, why=str(error)) from error
            except (ValueError, TypeError) as error:
                raise Malformed(str(error)) from error

        with self._state.load.busy():
            result, *_ = await self._state.device.run(op, current)
        self.done[f"{op}s"] += 1
        return result

    async def _which(self, request: PassRequest[Any], indices: range, ahead: bool = False) -> Microbatch:
        if request.index not in indices:
            raise Malformed(f"no such microbatch (index: {request.index}, there are: {indices})")
        await self._state.reached_parameters(request.step, request.parameter_version, ahead)
        return request.which

    async def _arrays(self, coded: Coded, wanted: ArrayLayouts, fewer: bool = False) -> tuple[Block, ...]:
        """Arrays of a request, decoded. Raises Malformed: other dtypes or shapes than expected; see `check_layouts`."""
        blocks = await self._coding.unpack(*coded, self.most_bytes)
        check_layouts(blocks, wanted, fewer)
        return blocks


def check_layouts(blocks: Sequence[Block], wanted: ArrayLayouts, fewer: bool = False) -> None:
    """Raises Malformed: arrays have other dtypes or shapes than expected.

    Args:
        fewer: accept arrays of fewer samples, but at least one, the same number in all.
    """
    got = [(block.dtype, tuple(block.shape)) for block in blocks]
    samples = {shape[:1] for _, shape in got}
    if fewer and len(samples) == 1 and all((1,) <= have <= shape[:1] for have in samples for _, shape in wanted):
        wanted = [(dtype, have + tuple(shape[1:])) for have in samples for dtype, shape in wanted]
    if got != [(dtype, tuple(shape)) for dtype, shape in wanted]:
        raise Malformed(f"other arrays than the stage takes (got: {got!r:.120}, expected: {wanted!r:.120})")
