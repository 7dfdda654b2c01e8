"""A leaving peer sends its gradient sum to another peer of its stage, so that no microbatch is computed again.

The sum and the indices in it move together. During the transfer neither peer counts or sums anything else.
"""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from pipelined.membership.client import Asking
from pipelined.membership.records import Peer
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol import inherited
from transports.rpc import Rejected, Request, Response
from transports.rpc.fields import MOST


class Succession:
    """Sends one replica's sum to a successor, and adds another replica's sum to its own."""

    def __init__(self, state: StageState):
        self._state = state

    async def find_successor(self, others: Iterable[Peer], asking: Asking, limit: float) -> str | None:
        """Send this peer's sum to one of these peers. Returns the successor's name; None: no peer accepted it.

        Args:
            limit: seconds after which a peer's reply is late.
        """
        for other in others:
            with suppress(NoLongerValid, Rejected):
                await self.hand_over(other, asking, limit)
                return other.name
        return None

    async def hand_over(self, successor: Peer, asking: Asking, limit: float) -> None:
        """Send this peer's sum to another peer; nothing is counted here meanwhile.

        Raises:
            NoLongerValid: the successor has left, or is late. Rejected: "busy", a round is in progress here, or as the
                successor replied. The sum stays here in either case.
        """
        state = self._state
        if state.ledger.frozen is not None:
            raise Rejected("busy")
        state.handing_over, state.ledger.frozen = True, (MOST, 0)
        try:
            sums, losses = await state.counted()
            arrays = sums, np.array(list(losses), np.int64), np.array(list(losses.values()), np.float64)
            await asking.request(successor, "inherit", *arrays, limit=limit, **state.version._asdict())
            await state.drop()
        finally:
            state.handing_over, state.ledger.frozen = False, None
            state.changed.notify_all()

    async def inherit(self, request: Request) -> Response:
        """Add the sum of a leaving peer to this one's.

        Raises:
            Rejected: "stale", "behind"; "busy": a round is in progress; "overlap": both sums hold a microbatch;
                "malformed".
        """
        state = self._state
        await state.reached_version(request)
        sums, indices, losses = inherited(request, state.stage.sums, state.rules.batch)
        version = state.version

        def work() -> None:
            ledger = state.ledger
            if state.given_up or state.version != version:  # a step was taken while the device was busy
                raise Rejected("stale", step=state.step)
            if ledger.frozen is not None or state.handing_over:
                raise Rejected("busy")
            if not ledger.losses.keys().isdisjoint(indices):
                raise Rejected("overlap")
            state.stage.sums += sums
            ledger.losses.update(zip(indices, losses, strict=True))

        await state.device.run("inherit", work)
        return Response()
