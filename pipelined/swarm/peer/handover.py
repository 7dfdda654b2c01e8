"""What was counted at a peer that leaves goes to another of its stage, rather than being computed again.

The one rule: a sum and the indices in it pass together, and while they do neither peer counts or sums anything else.
"""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from pipelined.membership.client import Asking
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol import MOST, inherited
from pipelined.swarm.records import Peer
from transports.rpc import Rejected, Request, Response


class Succession:
    """Gives away what one replica counted, and takes in what another did."""

    def __init__(self, state: StageState):
        self._state = state

    async def find_successor(self, others: Iterable[Peer], asking: Asking, limit: float) -> str | None:
        """Give what was counted here to one of these peers. Returns its name; None: none of them took it.

        Args:
            limit: seconds after which any of them is late.
        """
        for other in others:
            with suppress(NoLongerValid, Rejected):
                await self.hand_over(other, asking, limit)
                return other.name
        return None

    async def hand_over(self, successor: Peer, asking: Asking, limit: float) -> None:
        """Let another peer have what was counted here; nothing is counted here meanwhile.

        Raises:
            NoLongerValid: it is gone, or late. Rejected: "busy", a round is under way here, or as it says. All stays
                here then.
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
        """Add the sum of a peer that leaves to this one.

        Raises:
            Rejected: "stale", "behind"; "busy": a round is under way; "overlap"; "malformed".
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
