"""What was counted at a peer that leaves goes to another of its stage, rather than being computed again.

The one rule: a sum and the indices in it pass together, and while they do neither peer counts or sums anything else.
"""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from pipelined.membership.client import Asking
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.peer.stage_state import Held
from pipelined.swarm.protocol import MOST, inherited
from pipelined.swarm.records import Peer
from transports.rpc import Answer, Question, Refusal


class Succession:
    """The leaving, and the inheriting, of one stage held."""

    def __init__(self, held: Held):
        self._held = held

    async def find_successor(self, others: Iterable[Peer], asking: Asking, limit: float) -> str | None:
        """Give what was counted here to one of these peers. Returns its name; None: none of them took it.

        Args:
            limit: seconds after which any of them is late.
        """
        for other in others:
            with suppress(NoLongerValid, Refusal):
                await self.hand_over(other, asking, limit)
                return other.name
        return None

    async def hand_over(self, successor: Peer, asking: Asking, limit: float) -> None:
        """Let another peer have what was counted here; nothing is counted here meanwhile.

        Raises:
            NoLongerValid: it is gone, or late. Refusal: "busy", a round is under way here, or as it says. All stays
                here then.
        """
        held = self._held
        if held.ledger.frozen is not None:
            raise Refusal("busy")
        held.handing_over, held.ledger.frozen = True, (MOST, 0)
        try:
            sums, losses = await held.counted()
            arrays = sums, np.array(list(losses), np.int64), np.array(list(losses.values()), np.float64)
            await asking.ask(successor, "inherit", *arrays, limit=limit, **held.point._asdict())
            await held.drop()
        finally:
            held.handing_over, held.ledger.frozen = False, None
            held.changed.notify_all()

    async def inherit(self, question: Question) -> Answer:
        """Add the sum of a peer that leaves to this one.

        Raises:
            Refusal: "stale", "behind"; "busy": a round is under way; "overlap"; "malformed".
        """
        held = self._held
        await held.reached_point(question)
        sums, indices, losses = inherited(question, held.stage.sums, held.rules.batch)
        point = held.point

        def work() -> None:
            ledger = held.ledger
            if held.given_up or held.point != point:  # a step was taken while the device was busy
                raise Refusal("stale", step=held.step)
            if ledger.frozen is not None or held.handing_over:
                raise Refusal("busy")
            if not ledger.losses.keys().isdisjoint(indices):
                raise Refusal("overlap")
            held.stage.sums += sums
            ledger.losses.update(zip(indices, losses, strict=True))

        await held.device.run("inherit", work)
        return Answer()
