"""A round to commit a step: request every peer's counts, choose sums that make up the batch, sum at each stage.

A sum cannot be taken apart. If two peers of a stage counted the same microbatch (the first reply was lost, and the
trainer sent the microbatch to the second peer), one of them discards its whole sum, and the microbatches that only it
had counted are computed again. A peer that does not reply is left out. The members are fixed before anything is summed.
If a member is lost during the sum, the round has failed and changes nothing at any peer.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from pipelined.errors import UsageError
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.reasons import Blame, Reason
from pipelined.membership.view import NoLongerValid
from pipelined.state.stages.versions import Version
from pipelined.swarm.leader.failures import FailureLog
from pipelined.swarm.protocol.rounds import Prepare, Reduce, Resume, RoundMember, RoundName, Summed
from pipelined.swarm.records.members import PeerRecord
from pipelined.swarm.records.steps import Members, members_of
from transports import Nursery
from transports.rpc import Rejected


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """What a peer replied to `Prepare`: the losses of its microbatches by index, and its load.

    Args:
        received_at: when the reply arrived, in seconds of the event loop's clock.
    """

    peer: PeerRecord
    losses: Mapping[int, float]
    load: float
    received_at: float


class ChosenSums(NamedTuple):
    """What to do with the sums of one stage's peers.

    Args:
        kept_peers: those with sums that count; no microbatch is in two of them.
        dropped_peers: those that must discard their sums and count from zero.
        missing_microbatches: those that no kept sum contains.
    """

    kept_peers: tuple[str, ...]
    dropped_peers: tuple[str, ...]
    missing_microbatches: frozenset[int]


def choose_sums(indices_by_peer: Mapping[str, Set[int]], batch: int) -> ChosenSums:
    """Choose which sums to keep: greedily, the largest first; sums of equal size in the order of their peers' names.

    Args:
        indices_by_peer: by peer, the indices that its sum holds.
        batch: microbatches of a step; their indices are 0 … batch-1.
    Cost: O(peers log peers + indices).
    """
    keep, drop, summed = list[str](), list[str](), set[int]()
    step_indices = set(range(batch))
    for name in sorted(indices_by_peer, key=lambda name: (-len(indices_by_peer[name]), name)):
        fits = summed.isdisjoint(indices_by_peer[name]) and indices_by_peer[name] <= step_indices
        (keep if fits else drop).append(name)
        if fits:
            summed |= indices_by_peer[name]
    return ChosenSums(tuple(sorted(keep)), tuple(sorted(drop)), frozenset(step_indices - summed))


MAX_QUOTED = 3
"""Number of refusals that the text of a failed round quotes; the text states how many more there are."""


class RoundFailed(Exception):
    """Microbatches are missing, or a member was lost, rejected or has another square: the text says which."""


class TotalsDiffer(Exception):
    """Peers of one stage hold different totals, so they are no longer replicas."""


@dataclass(frozen=True)
class PreparedRound:
    """The first phase of a round, when it is over.

    Args:
        replies: by stage and name, the replies of the peers that are prepared: the members of the round.
        chosen: by stage, which of their sums to keep.
        missing_microbatches: by stage, those that the sums lack; None: no peer of the stage replied, so it is unknown.
        seconds: from the first request to the last reply.
    """

    replies: Sequence[Mapping[str, PeerCounts]]
    chosen: Sequence[ChosenSums]
    missing_microbatches: Sequence[Set[int] | None]
    seconds: float

    @property
    def members(self) -> list[Members]:
        """By stage, the members of the round."""
        return [members_of(reply) for reply in self.replies]


class Totals(NamedTuple):
    """The second phase of a round, when it is over: by stage, the square of the total's norm, and its digest.

    Args:
        fit: whether all totals can be applied.
    """

    squares: list[float]
    digests: list[bytes]
    fit: bool


class CommitRound:
    """One round to commit a step: `prepare`, then `reduce`, or `resume` where either failed.

    Args:
        version: of the parameters with which the step was computed.
        peers: by stage, those that have its state.

    Attributes:
        log: why it failed.
    """

    def __init__(
        self, name: RoundName, version: Version, batch: int, peers: Sequence[Sequence[PeerRecord]], client: MemberClient
    ):
        self.name, self._version, self._batch = name, version, batch
        self.peers = peers
        self._client = client
        self.log = FailureLog()

    async def prepare(self) -> PreparedRound:
        """Have every peer stop counting and report its counts."""
        start_s = asyncio.get_running_loop().time()
        replies = [dict[str, PeerCounts]() for _ in self.peers]
        async with Nursery() as tasks:
            for stage, peers in enumerate(self.peers):
                for peer in peers:
                    tasks.create_task(self._request_counts(stage, peer, replies[stage]))
        indices = [{name: reply.losses.keys() for name, reply in stage_replies.items()} for stage_replies in replies]
        chosen = [choose_sums(losses, self._batch) for losses in indices]
        stages = zip(self.peers, replies, chosen, strict=True)
        missing = [
            sums.missing_microbatches if stage_replies or not peers else None for peers, stage_replies, sums in stages
        ]
        last_reply_at = max(
            [reply.received_at for stage_replies in replies for reply in stage_replies.values()], default=start_s
        )
        return PreparedRound(replies, chosen, missing, last_reply_at - start_s)

    async def resume(self, prepared: PreparedRound) -> None:
        """Have every peer count again, the dropped ones from zero. Returns when all members still here have replied.

        A peer that did not reply to `prepare` may have received it, and counts nothing until it receives `resume`.
        """
        async with Nursery() as tasks:
            for peers, sums in zip(self.peers, prepared.chosen, strict=True):
                for peer in peers:
                    tasks.create_task(self._request_resume(peer, peer.name not in sums.dropped_peers))

    async def reduce(self, prepared: PreparedRound, spread_s: float, uncoded_stages: Set[int] = frozenset()) -> Totals:
        """Sum at all stages at once.

        Args:
            spread_s: seconds over which the sum is spread while nothing waits for it; 0: something waits for it.
            uncoded_stages: stages that sum without a codec.
        Raises:
            RoundFailed: a member was lost, or the squares of a stage's members differ.
            TotalsDiffer: members of a stage hold different totals.
            UsageError: the totals are not finite.
        """
        step = self._version.step
        summing = _Summing(
            self._client, self.name, step, prepared=prepared, log=self.log, uncoded_stages=uncoded_stages
        )
        return await summing.run(spread_s)

    async def _request_counts(self, stage: int, peer: PeerRecord, replies: dict[str, PeerCounts]) -> None:
        """Have one peer stop counting; add its counts to the replies of its stage. Without a reply it is left out."""
        try:
            counts = await self._client.request(peer, Prepare(self.name, *self._version))
            received_at = asyncio.get_running_loop().time()
            replies[peer.name] = PeerCounts(peer, counts.by_index(), counts.load, received_at)
        except NoLongerValid:
            pass
        except Rejected as rejection:
            reason = Reason.of(rejection)
            if reason is None or reason.blame is not Blame.NEITHER:  # else it is not at fault
                self.log.note(stage, peer, rejection, replies.keys())

    async def _request_resume(self, peer: PeerRecord, keep: bool) -> None:
        with suppress(Rejected):  # the peer has received a request of another round
            await self._client.request_until_reply(peer, Resume(self.name, keep))


class _Summing:
    """The second phase of one round, from the first request to the totals."""

    def __init__(
        self,
        client: MemberClient,
        name: RoundName,
        step: int,
        *,
        prepared: PreparedRound,
        log: FailureLog,
        uncoded_stages: Set[int],
    ):
        self._client, self._name, self._step = client, name, step
        self._prepared, self._log, self._uncoded_stages = prepared, log, uncoded_stages
        self._totals = [dict[str, Summed]() for _ in prepared.replies]
        self._rejections = dict[str, NoLongerValid | Rejected]()
        self._deadline = asyncio.timeout(None)

    async def run(self, spread_s: float) -> Totals:
        """See `CommitRound.reduce`."""
        prepared = self._prepared
        with suppress(TimeoutError):
            async with self._deadline, Nursery() as tasks:
                for stage, (replies, sums) in enumerate(zip(prepared.replies, prepared.chosen, strict=True)):
                    for reply in replies.values():
                        tasks.create_task(self._request_total(reply.peer, stage, sums, spread_s))
        if self._rejections:
            self._end_if_not_finite()
            reasons = [f"{name}: {error}" for name, error in self._rejections.items()]
            hidden = [f"and {len(reasons) - MAX_QUOTED} more"] if len(reasons) > MAX_QUOTED else []
            raise RoundFailed("; ".join([*reasons[:MAX_QUOTED], *hidden]))
        self._check_totals()
        self._check_squares()
        first_totals = [next(iter(totals.values())) for totals in self._totals]
        fit = all(total.fits for totals in self._totals for total in totals.values())
        return Totals([total.square for total in first_totals], [total.digest for total in first_totals], fit)

    def _check_totals(self) -> None:
        """Raises TotalsDiffer: totals differ within a stage."""
        for stage, totals in enumerate(self._totals):
            if len({total.digest for total in totals.values()}) > 1:
                raise TotalsDiffer(f"the peers of stage {stage} hold different totals (peers: {len(totals)})")

    def _check_squares(self) -> None:
        """Raises RoundFailed: squares differ within a stage, though its totals are equal. Every such pair failed."""
        reasons = []
        for stage, totals in enumerate(self._totals):
            squares = {name: totals[name].square for name in self._prepared.replies[stage]}
            pairs = [pair for pair in combinations(squares, 2) if squares[pair[0]] != squares[pair[1]]]
            bounds = f"lowest: {min(squares.values())!r}, highest: {max(squares.values())!r}"
            why = f"the squares of one total differ at stage {stage} ({bounds})"
            for pair in pairs:
                self._log.note_pair(stage, pair, why)
            reasons += [why] if pairs else []
        if reasons:
            raise RoundFailed("; ".join(reasons[:MAX_QUOTED]))

    async def _request_total(self, peer: PeerRecord, stage: int, sums: ChosenSums, spread_s: float) -> None:
        """Have a peer sum, and note its total or why it failed.

        After the first failure the other members have as long as preparing all of them took to report with which
        members they failed: the first report may not name the member that all others name.
        """
        peers = [reply.peer for _, reply in sorted(self._prepared.replies[stage].items())]
        members = tuple(RoundMember(peer.name, peer.address, peer.incarnation) for peer in peers)
        keep = peer.name in sums.kept_peers
        coded = stage not in self._uncoded_stages
        try:
            request = Reduce(self._name, members, keep, spread_s, coded)
            self._totals[stage][peer.name] = await self._client.request(peer, request)
        except (NoLongerValid, Rejected) as error:
            if Reason.of(error) is Reason.NOT_FINITE:
                raise self._not_finite(peer.name, error) from error
            self._record_failure(stage, peer, error)
            if self._deadline.when() is None:
                self._deadline.reschedule(asyncio.get_running_loop().time() + self._prepared.seconds)

    def _record_failure(self, stage: int, peer: PeerRecord, error: NoLongerValid | Rejected) -> None:
        self._rejections[peer.name] = error
        if Reason.of(error) is Reason.BEYOND_CODEC and stage not in self._uncoded_stages:
            self._log.beyond_codec[stage] = str(error)
        else:
            self._log.note(stage, peer, error, self._prepared.replies[stage].keys())

    def _end_if_not_finite(self) -> None:
        """Raises UsageError: no member of a stage has finite sums. If one has, only the others are at fault."""
        for replies in self._prepared.replies:
            reasons = {Reason.of(self._rejections.get(name)) for name in replies}
            if reasons == {Reason.PART_NOT_FINITE}:
                raise self._not_finite(*min(self._rejections.items()))

    def _not_finite(self, name: str, error: NoLongerValid | Rejected) -> UsageError:
        fact = f"the gradients of step {self._step} add up to no finite number ({name}: {error})"
        return UsageError(f"{fact}; training has diverged: lower the learning rate")
