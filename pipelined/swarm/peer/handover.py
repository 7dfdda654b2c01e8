"""A leaving peer sends its gradient sum to another peer of its stage, so that no microbatch is computed again.

The sum and the indices in it move together. During the transfer neither peer counts or sums anything else.
"""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.fields import MAX_INTEGER, Malformed
from pipelined.membership.messaging.messages import Done
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.rounds import Inherit, RoundName
from pipelined.swarm.records.members import PeerRecord
from pipelined.swarm.stages.swarm_stage import add_sums
from transports.rpc import Rejected


class Handover:
    """Sends one replica's sum to a successor, and adds another replica's sum to its own."""

    def __init__(self, state: StageState):
        self._state = state

    async def hand_over_sum(self, peers: Iterable[PeerRecord], client: MemberClient, limit: float) -> str | None:
        """Send this peer's sum to one of these peers. Returns the successor's name; None: no peer accepted it.

        Args:
            limit: seconds after which a peer's reply is late.
        """
        for peer in peers:
            with suppress(NoLongerValid, Rejected):
                await self.hand_over(peer, client, limit)
                return peer.name
        return None

    async def hand_over(self, successor: PeerRecord, client: MemberClient, limit: float) -> None:
        """Send this peer's sum to another peer; nothing is counted here meanwhile.

        Raises:
            NoLongerValid: the successor has left, or is late. Rejected: "in a round", or as the successor
                replied. The sum stays here in either case.
        """
        state = self._state
        if state.ledger.frozen is not None:
            raise Rejected(Reason.IN_ROUND)
        state.handing_over = True
        state.ledger.frozen = RoundName(MAX_INTEGER, 0)
        try:
            sums, losses = await state.read_sums()
            indices = np.array(list(losses), np.int64)
            values = np.array(list(losses.values()), np.float64)
            await client.request(successor, Inherit(*state.version, sums, indices, values), limit)
            await state.discard_counts()
        finally:
            state.handing_over, state.ledger.frozen = False, None
            state.changed.notify_all()

    async def inherit(self, request: Inherit) -> Done:
        """Add the sum of a leaving peer to this one's.

        Raises:
            Rejected: "step passed", "behind", "other lineage", "in a round"; "overlap": both sums hold a microbatch;
                "not finite".
            Malformed: the sums are of another stage, or indices are outside the step.
        """
        state = self._state
        await state.wait_for_version(request.version)
        _check(request, state.stage.sums, state.rules.batch)
        indices = request.indices.tolist()
        version = state.version

        def work() -> None:
            ledger = state.ledger
            if state.given_up or state.version != version:  # a step was taken while the device was busy
                raise Rejected(Reason.STEP_PASSED, step=state.step)
            if ledger.frozen is not None or state.handing_over:
                raise Rejected(Reason.IN_ROUND)
            if not ledger.losses.keys().isdisjoint(indices):
                raise Rejected(Reason.OVERLAP)
            sums = state.stage.sums
            add_sums(sums, request.sums, state.stage.maxima)
            state.stage.sums = sums
            ledger.losses.update(zip(indices, request.losses.tolist(), strict=True))

        await state.executor.run("inherit", work)
        return Done()


def _check(request: Inherit, own_sums: np.ndarray, batch: int) -> None:
    """Check the sum of a leaving peer against this peer's, to which it is added.

    Args:
        batch: microbatches of a step.
    Raises:
        Malformed: another stage's sums, or indices outside the step. Rejected: "not finite".
    """
    sums = request.sums
    indices = request.indices.tolist()
    losses = request.losses
    if (sums.shape, sums.dtype) != (own_sums.shape, own_sums.dtype) or len(indices) != len(losses):
        raise Malformed(
            f"another stage's sums (got: {sums.dtype} {sums.shape}, here: {own_sums.dtype} {own_sums.shape})"
        )
    if not (np.isfinite(sums).all() and np.isfinite(losses).all()):
        raise Rejected(Reason.NOT_FINITE, why="sums or losses of a peer that leaves")
    if len(set(indices)) < len(indices) or not all(0 <= index < batch for index in indices):
        raise Malformed(f"indices twice, or outside the step (microbatches: {batch})")
