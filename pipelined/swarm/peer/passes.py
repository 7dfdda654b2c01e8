"""Forward and backward passes at a peer, and evaluations, as trainers request them.

A gradient is counted once for each microbatch and step, and counts are final once they were reported to a leader. Every
request is checked before the device computes anything.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

from pipelined.aio.events import warn
from pipelined.swarm.peer.load import Load
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol import check_layouts, grouped
from pipelined.swarm.stages.codec import Coded, Coding
from pipelined.swarm.stages.stage import Microbatch, NotFinite
from transports import Block, WireError
from transports.rpc import Rejected, Request, Response
from transports.rpc.fields import whole
from transports.wire.arrays import SIZES

T = TypeVar("T")
LEAST_BYTES = 1 << 14
"""Largest overhead of a codec on an array of any size, in bytes."""


class Passes:
    """The passes of one replica.

    Attributes:
        load: the work that waits for the device.
        done: number of passes of each kind.
    """

    def __init__(self, state: StageState, coding: Coding):
        self._state, self._coding = state, coding
        self.load, self.done = Load(state.device.clock), {"forwards": 0, "backwards": 0}

    async def forward(self, request: Request) -> Response:
        """Compute the outputs of one microbatch.

        Raises:
            Rejected: "stale", "behind" (both with this peer's step), "malformed", or "not finite": the result.
        """
        which = await self._which(request, range(self._state.rules.batch), ahead=True)
        (inputs,) = await self._inputs(request, 1)
        outputs = await self._compute("forward", which, lambda: self._state.stage.forward(which, inputs))
        blocks, note = await self._packed(self._coding, outputs, f"outputs of microbatch {which.index}")
        return Response(blocks, {"codec": note})

    async def backward(self, request: Request) -> Response:
        """Compute the gradients of one microbatch's inputs; count the parameters' gradients unless already counted.

        Returns: with the note `counted`, whether this peer's sum holds it now, and `loss`.
        Raises:
            Rejected: as `forward`.
        """
        which = await self._which(request, range(self._state.rules.batch), ahead=True)
        inputs, given = await self._inputs(request, 2)
        asked = request.note.get("count") is True

        def work() -> tuple[Any, bool]:
            ledger = self._state.ledger_of(which.step)
            count = asked and ledger.frozen is None and which.index not in ledger.losses
            passed = self._state.stage.backward(which, inputs, given, count)
            if count:
                ledger.losses[which.index] = passed.loss or 0.0
            return passed, which.index in ledger.losses

        passed, counted = await self._compute("backward", which, work)
        blocks, note = await self._packed(self._coding, passed.gradients, f"gradients of microbatch {which.index}")
        return Response(blocks, {"codec": note, "counted": counted, "loss": passed.loss})

    async def evaluate(self, request: Request) -> Response:
        """Compute the outputs of one microbatch of validation data; on the last stage, its samples' losses.

        Raises:
            Rejected: as `forward`.
        """
        rules, last = self._state.rules, self._state.index == self._state.rules.stages - 1
        which = await self._which(request, range(rules.batch, rules.batch + rules.eval_batch))
        groups = await self._inputs(request, 1 + last, fewer=True)
        outputs = await self._compute("forward", which, lambda: self._state.stage.evaluate(*groups))
        coding = Coding() if last else self._coding
        blocks, note = await self._packed(coding, outputs, f"outputs of microbatch {which.index}")
        return Response(blocks, {"codec": note})

    @property
    def most_bytes(self) -> int:
        """Largest size of one group of arrays, decoded, in bytes."""
        layouts = [*self._state.stage.expects(), *self._state.stage.expects_given()]
        return LEAST_BYTES + 2 * max(prod(shape) * SIZES[dtype] for dtype, shape in layouts)

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
                raise Rejected("left")
            if which.step < self._state.step:
                raise Rejected("stale", step=self._state.step)
            try:
                return work()
            except NotFinite as error:
                raise Rejected("not finite", why=str(error)) from error
            except (ValueError, TypeError) as error:
                raise Rejected("malformed", why=str(error)) from error

        with self.load.one():
            result, *_ = await self._state.device.run(op, current)
        self.done[f"{op}s"] += 1
        return result

    async def _which(self, request: Request, indices: range, ahead: bool = False) -> Microbatch:
        which = Microbatch(whole(request.note, "step"), whole(request.note, "index"))
        if which.index not in indices:
            raise Rejected("malformed", why=f"no such microbatch (index: {which.index}, there are: {indices})")
        await self._state.reached_basis(request, ahead)
        return which

    async def _inputs(self, request: Request, groups: int, fewer: bool = False) -> list[tuple[Block, ...]]:
        """The request's arrays in their groups (inputs; gradients or labels, maybe of fewer samples), decoded."""
        stage = self._state.stage
        taken = [await self._coding.unpack(*each, self.most_bytes) for each in grouped(request, groups)]
        for blocks, wanted, less in zip(taken, (stage.expects(), stage.expects_given()), (False, fewer), strict=False):
            check_layouts(blocks, wanted, less)
        return taken
