"""The passes of one replica: each gradient is counted once, and counts are final once a leader has them."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

from pipelined.membership.messaging.fields import Malformed
from pipelined.membership.messaging.reasons import Reason
from pipelined.process.reporting.events import warn
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.work import Backward, Evaluate, Forward, Gradients, Outputs, PassRequest
from pipelined.swarm.stages.swarm_stage import Coded, Coding, Microbatch, NotFinite
from transports import Block, WireError
from transports.rpc import Rejected
from transports.wire.arrays import SIZES

T = TypeVar("T")
ArraySpecs = Sequence[tuple[str, tuple[int, ...]]]
CODEC_BYTES = 1 << 14
"""Most bytes that a codec adds to an array of any size."""


class Passes:
    """The forward and backward passes of one replica, and evaluations; the device computes only checked requests.

    Attributes:
        counts: number of passes of each kind.
    """

    def __init__(self, state: StageState, coding: Coding):
        self._state, self._coding = state, coding
        self.counts = {"forwards": 0, "backwards": 0}

    async def forward(self, request: Forward) -> Outputs:
        """Compute the outputs of one microbatch.

        Raises:
            Rejected: "step passed", "behind", "other lineage" (all with this peer's step), "left", or "not finite".
            Malformed: no such microbatch, or not the arrays that the stage takes.
        """
        microbatch = await self._admit(request, range(self._state.rules.batch), ahead=True)
        inputs = await self._unpack(request.inputs, self._state.stage.expects())
        outputs = await self._compute("forward", microbatch, lambda: self._state.stage.forward(microbatch, inputs))
        return Outputs(await self._pack(self._coding, outputs, f"outputs of microbatch {microbatch.index}"))

    async def backward(self, request: Backward) -> Gradients:
        """Compute the gradients of one microbatch's inputs; count the parameters' gradients unless already counted.

        Raises:
            Rejected, Malformed: as `forward`.
        """
        microbatch = await self._admit(request, range(self._state.rules.batch), ahead=True)
        inputs = await self._unpack(request.inputs, self._state.stage.expects())
        given = await self._unpack(request.given, self._state.stage.expects_given())

        def work() -> tuple[Any, bool]:
            ledger = self._state.ledger_of(microbatch.step)
            count = request.count and ledger.frozen is None and microbatch.index not in ledger.losses
            result = self._state.stage.backward(microbatch, inputs, given, count)
            if count:
                ledger.losses[microbatch.index] = result.loss or 0.0
            return result, microbatch.index in ledger.losses

        result, counted = await self._compute("backward", microbatch, work)
        coded = await self._pack(self._coding, result.gradients, f"gradients of microbatch {microbatch.index}")
        return Gradients(coded, counted)

    async def evaluate(self, request: Evaluate) -> Outputs:
        """Compute the outputs of one microbatch of validation data; on the last stage, its samples' losses.

        Raises:
            Rejected, Malformed: as `forward`.
        """
        rules = self._state.rules
        is_last = self._state.index == self._state.rules.stages - 1
        microbatch = await self._admit(request, range(rules.batch, rules.batch + rules.eval_batch))
        if (request.labels is not None) != is_last:
            raise Malformed(f"labels at another stage than the last, or none at the last (stage: {self._state.index})")
        groups = [await self._unpack(request.inputs, self._state.stage.expects())]
        if request.labels is not None:
            groups.append(await self._unpack(request.labels, self._state.stage.expects_given(), allows_fewer=True))
        outputs = await self._compute("forward", microbatch, lambda: self._state.stage.evaluate(*groups))
        coding = Coding() if is_last else self._coding
        return Outputs(await self._pack(coding, outputs, f"outputs of microbatch {microbatch.index}"))

    @property
    def max_bytes(self) -> int:
        """Largest size of one group of arrays, decoded, in bytes."""
        specs = [*self._state.stage.expects(), *self._state.stage.expects_given()]
        return CODEC_BYTES + 2 * max(prod(shape) * SIZES[dtype] for dtype, shape in specs)

    async def _pack(self, coding: Coding, arrays: Sequence[Any], what: str) -> Coded:
        """The arrays as they are sent: without the codec if it cannot carry their values, which are finite."""
        try:
            return await coding.pack(arrays, what)
        except WireError as error:
            warn("arrays go uncoded", peer=self._state.name, stage=self._state.index, codec=coding.codec, why=error)
            return tuple(arrays), None

    async def _compute(self, op: str, microbatch: Microbatch, work: Callable[[], T]) -> T:
        def compute_if_current() -> T:
            if self._state.given_up:
                raise Rejected(Reason.LEFT)
            if microbatch.step < self._state.step:
                raise Rejected(Reason.STEP_PASSED, step=self._state.step)
            try:
                return work()
            except NotFinite as error:
                raise Rejected(Reason.NOT_FINITE, why=str(error)) from error
            except (ValueError, TypeError) as error:
                raise Malformed(str(error)) from error

        with self._state.load.busy():
            result, *_ = await self._state.executor.run(op, compute_if_current)
        self.counts[f"{op}s"] += 1
        return result

    async def _admit(self, request: PassRequest[Any], indices: range, ahead: bool = False) -> Microbatch:
        if request.index not in indices:
            raise Malformed(f"no such microbatch (index: {request.index}, there are: {indices})")
        await self._state.wait_for_parameters(request.step, request.parameter_version, ahead)
        return Microbatch(request.step, request.index)

    async def _unpack(self, coded: Coded, specs: ArraySpecs, allows_fewer: bool = False) -> tuple[Block, ...]:
        """Arrays of a request, decoded. Raises Malformed: other dtypes or shapes than expected; see `check_specs`."""
        blocks = await self._coding.unpack(*coded, self.max_bytes)
        check_specs(blocks, specs, allows_fewer)
        return blocks


def check_specs(blocks: Sequence[Block], specs: ArraySpecs, allows_fewer: bool) -> None:
    """Raises Malformed: arrays have other dtypes or shapes than expected.

    Args:
        allows_fewer: accept arrays of fewer samples, but at least one, the same number in all.
    """
    received_specs = [(block.dtype, tuple(block.shape)) for block in blocks]
    if allows_fewer and len({shape[:1] for _, shape in received_specs}) == 1:
        samples = received_specs[0][1][:1]
        if all((1,) <= samples <= tuple(shape[:1]) for _, shape in specs):
            specs = [(dtype, samples + tuple(shape[1:])) for dtype, shape in specs]
    if received_specs != [(dtype, tuple(shape)) for dtype, shape in specs]:
        raise Malformed(f"other arrays than the stage takes (got: {received_specs!r:.120}, expected: {specs!r:.120})")
