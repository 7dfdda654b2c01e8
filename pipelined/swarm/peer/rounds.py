"""One peer's part in committing a step, as the leader requests it: report the counts, count again, or sum.

Reported counts are final: `prepare` stops counting. The sums stay until a step that contains them is committed. A
request with an earlier round name comes from a former leader and is refused.
"""

import hashlib
import math

import numpy as np

from pipelined.aio.tasks import Spread
from pipelined.membership.messaging.messages import Done
from pipelined.membership.messaging.reasons import Reason
from pipelined.swarm.peer.all_reduce import AllReduce
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.rounds import (
    DIGEST_BYTES,
    Counts,
    PartTotal,
    Prepare,
    Reduce,
    Resume,
    RoundName,
    RoundReport,
    SendPart,
    Summed,
)
from pipelined.swarm.stages.swarm_stage import Coding, SwarmStage
from transports.rpc import Endpoint, Party, Rejected


class RoundService:
    """The rounds of one replica, one at a time.

    Args:
        coding: of the arrays that members send one another.
    """

    def __init__(self, state: StageState, endpoint: Endpoint, coding: Coding):
        self._state, self._endpoint, self._coding = state, endpoint, coding
        self._round: AllReduce | None = None
        self._held_total: tuple[RoundName, np.ndarray] | None = None
        self._last_name = RoundName(0, 0)

    async def prepare(self, request: Prepare) -> Counts:
        """Stop counting, and reply with the counted indices and their losses.

        Raises:
            Rejected: "old round" (another trainer leads), "step passed", "behind", "other lineage".
        """
        name = self._enter_round(request.round)
        state = self._state
        await state.wait_for_version(request.version)
        await state.wait_until(lambda: not state.handing_over)
        self._enter_round(name)  # a later round may have begun meanwhile
        self.abort("another round began")
        state.ledger.frozen = name
        await state.executor.run("prepare", lambda: None)  # wait for the pass in progress
        indices = sorted(state.ledger.losses)
        losses = [state.ledger.losses[index] for index in indices]
        return Counts(self._state.load.read_and_reset(), np.array(indices, np.int64), np.array(losses, np.float64))

    async def resume(self, request: Resume) -> Done:
        """Count again; first discard everything counted, if the leader's request says so."""
        name = self._enter_round(request.round)
        ledger = self._state.ledger
        self.abort("the leader resumed counting")
        if ledger.frozen is not None and ledger.frozen <= name:
            if not request.keep:
                await self._state.discard_counts()
            self._state.ledger.frozen = None
        return Done()

    async def reduce(self, request: Reduce) -> Summed:
        """Sum over the members of a round. Keeps the total until a step that contains it is committed, or a new round.

        Raises:
            Rejected: "old round", "not prepared", "lost" or "round aborted" (with the two members between which it
                failed), "not finite" (the total), "part not finite", "beyond codec" (sum again with `coded` False).
        """
        name = self._enter_round(request.round)
        members = request.members
        state = self._state
        positions = [position for position, member in enumerate(members) if member.name == state.name]
        if state.ledger.frozen != name or len(positions) != 1:
            raise Rejected(Reason.NOT_PREPARED, round=str(name))
        if not request.keep:
            await state.discard_counts()
        sums, _ = await state.read_sums()
        self.abort("another round began")
        coding = self._coding if request.coded else Coding(threads=self._coding.threads)
        self._round = AllReduce(
            self._endpoint,
            name,
            members,
            positions[0],
            sums,
            coding=coding,
            chunk_bytes=state.rules.chunk_bytes,
            maxima=state.stage.maxima,
        )
        state.changed.notify_all()
        total = await self._round.run(Spread(state.executor.clock, request.spread_s))
        reply, *_ = await state.executor.run("square", lambda: _describe_total(state.stage, total))
        if not math.isfinite(reply.square):
            raise Rejected(Reason.NOT_FINITE, why="all gradients together")
        if state.ledger.frozen != name:
            raise Rejected(Reason.ABORTED, why="another began")
        self._held_total = name, total
        return reply

    async def receive_part(self, request: SendPart, sender: Party) -> PartTotal:
        """Receive another member's part of a chunk that this peer owns; waits until this peer has begun the round."""
        name = request.round
        await self._state.wait_until(lambda: self._round is not None and self._round.name >= name)
        if self._round is None or self._round.name != name:
            raise Rejected(Reason.OLD_ROUND, round=str(name))
        return await self._round.receive_part(request, sender)

    def awaited(self, name: RoundName) -> RoundReport:
        """The members for which the sum of this name waits here; none if that sum is not in progress."""
        return self._round.awaited if self._round is not None and self._round.name == name else RoundReport()

    def total(self, round_name: str) -> np.ndarray | None:
        """The total of the round of this name, as records have it; None if this peer does not hold it."""
        return self._held_total[1] if self._held_total is not None and str(self._held_total[0]) == round_name else None

    def release_total(self) -> None:
        self._held_total = None

    def abort(self, why: str) -> None:
        """Abort the round in progress; requests that wait for it are refused."""
        self._held_total = None
        if self._round is not None:
            self._round.abort(why)

    def _enter_round(self, name: RoundName) -> RoundName:
        """Accept a round, and return its name; refuse earlier ones from now on. Raises Rejected: it is such a one."""
        if name < self._last_name:
            raise Rejected(Reason.OLD_ROUND, round=str(name))
        self._last_name = name
        return name


def _describe_total(stage: SwarmStage, total: np.ndarray) -> Summed:
    return Summed(stage.square(total), digest_of(total), stage.fits(total))


def digest_of(array: np.ndarray) -> bytes:
    """Bytes that are equal if all bits are equal."""
    return hashlib.blake2b(array.data.cast("B"), digest_size=DIGEST_BYTES).digest()
