"""One attempt to commit a step: request every peer's counts, choose sums that make up the batch, sum at each stage.

A sum cannot be taken apart. If two peers of a stage counted the same microbatch (the first reply was lost, and the
trainer sent the microbatch to the second peer), one of them discards its whole sum, and the microbatches that only it
had counted are computed again. A peer that does not reply is left out. The members are fixed before anything is summed.
If a member is lost during the sum, the attempt has failed and changes nothing at any peer.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.membership.client import MemberClient
from pipelined.membership.reasons import Blame, Reason
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.protocol.rounds import Prepare, Reduce, Resume, RoundMember, RoundName, Summed, parties_of
from pipelined.swarm.records.members import Peer
from pipelined.swarm.records.steps import Members, members_of
from transports.rpc import Rejected


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """What a peer replied to `Prepare`: the losses of its microbatches by index, and its load."""

    peer: Peer
    losses: Mapping[int, float]
    load: float


class Cover(NamedTuple):
    """What to do with the sums of one stage's peers.

    Args:
        keep: peers with sums that count; no microbatch is in two of them.
        drop: peers that must discard their sums and count from zero.
        missing: microbatches that no kept sum contains.
    """

    keep: tuple[str, ...]
    drop: tuple[str, ...]
    missing: frozenset[int]


def cover(counted: Mapping[str, Set[int]], batch: int) -> Cover:
    """Choose which sums to keep: greedily, the largest first; sums of equal size in the order of their peers' names.

    Args:
        counted: by peer, the indices that its sum holds.
        batch: microbatches of a step; their indices are 0 … batch-1.
    Cost: O(peers log peers + indices).
    """
    keep, drop, have = list[str](), list[str](), set[int]()
    wanted = set(range(batch))
    for name in sorted(counted, key=lambda name: (-len(counted[name]), name)):
        fits = have.isdisjoint(counted[name]) and counted[name] <= wanted
        (keep if fits else drop).append(name)
        if fits:
            have |= counted[name]
    return Cover(tuple(sorted(keep)), tuple(sorted(drop)), frozenset(wanted - have))


MOST_NAMED = 3
"""Number of refusals that the text of a failed attempt quotes; the text states how many more there are."""


class Failure(NamedTuple):
    """Why one attempt failed at one stage.

    Args:
        members: the two between which the sum failed; or one that failed by itself.
        why: as a member or the leader described it.
        by: the member that reported it.
        through: the one of the two that `by` had the failure from, where `by` is neither.
    """

    stage: int
    members: frozenset[str]
    why: str
    by: str = ""
    through: str = ""


class Failed(Exception):
    """The attempt failed: a member was lost or refused. The text names the member and the reason."""


class Diverged(Exception):
    """Peers of one stage hold different totals, so they are no longer replicas."""


class CommitRound:
    """One attempt to commit a step: prepare, and reduce.

    Args:
        members: by stage, the peers that have its state.

    Attributes:
        peers: by stage, those that have its state.
        replies: by stage and name, the replies of the peers that are prepared.
        digests: by stage, the digest of the total.
        beyond_codec: by stage, why the codec could not carry its sums; no member is at fault.
    """

    def __init__(self, name: RoundName, step: int, batch: int, members: Sequence[Sequence[Peer]], client: MemberClient):
        self.name, self._step, self._batch = name, step, batch
        self.peers, self._client = members, client
        self.replies: list[dict[str, PeerCounts]] = []
        self.digests: list[bytes] = []
        self._failures: list[Failure] = []
        self.beyond_codec: dict[int, str] = {}
        self._prepare_seconds = 0.0
        self._uncoded: Set[int] = frozenset()
        self._totals: list[dict[str, Summed]] = []
        self._rejections = dict[str, NoLongerValid | Rejected]()

    @property
    def failures(self) -> list[Failure]:
        """What members refused, or reported about one another.

        A member may pass on a report that two others failed. If neither of these two reports the failure itself, it
        counts against the reporting member and the member that it had the report from. So no member can have two
        others evicted by a false report.
        """
        own = {(each.stage, each.members) for each in self._failures if each.by in each.members}
        return [each if (each.stage, each.members) in own else _unconfirmed(each) for each in self._failures]

    async def prepare(self) -> list[Cover]:
        """Have every peer stop counting and report its counts. Returns by stage which of their sums to keep."""
        self.replies, began = [{} for _ in self.peers], asyncio.get_running_loop().time()
        async with Nursery() as tasks:
            for stage, peers in enumerate(self.peers):
                for peer in peers:
                    tasks.create_task(self._ask_prepared(stage, peer, began))
        return [
            cover({name: reply.losses.keys() for name, reply in each.items()}, self._batch) for each in self.replies
        ]

    async def resume(self, covers: Sequence[Cover]) -> None:
        """Have every peer count again, the dropped ones from zero. Returns when all members still here have replied.

        A peer that did not reply to `prepare` may have received it, and counts nothing until it receives `resume`.
        """
        async with Nursery() as tasks:
            for peers, covered in zip(self.peers, covers, strict=True):
                for peer in peers:
                    tasks.create_task(self._ask_to_resume(peer, peer.name not in covered.drop))

    async def reduce(self, covers: Sequence[Cover], within: float, uncoded: Set[int] = frozenset()) -> list[float]:
        """Sum at all stages at once. Returns the squares of the totals' norms, by stage.

        Args:
            within: seconds over which the sum is spread while nothing waits for it; 0: something waits for it.
            uncoded: stages that sum without a codec.
        Raises:
            Failed: a member was lost, or the squares of a stage's members differ.
            Diverged: members of a stage hold different totals.
            UsageError: the totals are not finite.
        """
        self._uncoded, self._totals = uncoded, [{} for _ in self.replies]
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._summing, Nursery() as tasks:
                for stage, (replies, covered) in enumerate(zip(self.replies, covers, strict=True)):
                    for reply in replies.values():
                        tasks.create_task(self._ask_reduced(reply.peer, stage, covered, within))
        if self._rejections:
            self._end_if_diverged()
            whys = [f"{name}: {error}" for name, error in self._rejections.items()]
            raise Failed(
                "; ".join(whys[:MOST_NAMED]) + (f"; and {len(whys) - MOST_NAMED} more" if whys[MOST_NAMED:] else "")
            )
        self._check_totals()
        self._check_squares()
        first = [next(iter(totals.values())) for totals in self._totals]
        self.digests = [total.digest for total in first]
        return [total.square for total in first]

    def _check_totals(self) -> None:
        """Raises Diverged: totals differ within a stage."""
        for stage, totals in enumerate(self._totals):
            if len({total.digest for total in totals.values()}) > 1:
                raise Diverged(f"the peers of stage {stage} hold different totals (peers: {len(totals)})")

    def _check_squares(self) -> None:
        """Raises Failed: squares differ within a stage, though its totals are equal. Each pair that differs failed."""
        whys = []
        for stage, totals in enumerate(self._totals):
            squares = {name: totals[name].square for name in self.replies[stage]}
            pairs = [pair for pair in combinations(squares, 2) if squares[pair[0]] != squares[pair[1]]]
            ends = f"lowest: {min(squares.values())!r}, highest: {max(squares.values())!r}"
            why = f"the squares of one total differ at stage {stage} ({ends})"
            self._failures += [Failure(stage, frozenset(pair), why, pair[0]) for pair in pairs]
            whys += [why] if pairs else []
        if whys:
            raise Failed("; ".join(whys[:MOST_NAMED]))

    def missing(self, covers: Sequence[Cover]) -> list[Set[int] | None]:
        """By stage, the microbatches that the sums lack; None: no peer of the stage replied, so they are unknown."""
        every = zip(self.peers, self.replies, covers, strict=True)
        return [covered.missing if replies or not peers else None for peers, replies, covered in every]

    def members(self) -> list[Members]:
        """By stage, the members of the round."""
        return [members_of(each) for each in self.replies]

    async def _ask_prepared(self, stage: int, peer: Peer, began: float) -> None:
        try:
            counts = await self._client.request(peer, Prepare(self.name, self._step))
            self.replies[stage][peer.name] = PeerCounts(peer, counts.by_index(), counts.load)
            self._prepare_seconds = asyncio.get_running_loop().time() - began
        except NoLongerValid:
            return
        except Rejected as rejection:
            reason = Reason.of(rejection)
            if reason is None or reason.blame is not Blame.NEITHER:  # else it is left out, and not at fault
                self._note(stage, peer, rejection)

    async def _ask_reduced(self, peer: Peer, stage: int, covered: Cover, within: float) -> None:
        """Have a peer sum, and note its total or why it failed.

        After the first failure the other members have as long as preparing all of them took to report with which
        members they failed: the first report may not name the member that all others name.
        """
        peers = [reply.peer for _, reply in sorted(self.replies[stage].items())]
        members = tuple(RoundMember(each.name, each.address, each.incarnation) for each in peers)
        keep, coded = peer.name in covered.keep, stage not in self._uncoded
        try:
            request = Reduce(self.name, members, keep, within, coded)
            self._totals[stage][peer.name] = await self._client.request(peer, request)
        except (NoLongerValid, Rejected) as error:
            if Reason.of(error) is Reason.NOT_FINITE:
                raise self._diverged(peer.name, error) from error
            self._record_failure(stage, peer, error)
            if self._summing.when() is None:
                self._summing.reschedule(asyncio.get_running_loop().time() + self._prepare_seconds)

    def _record_failure(self, stage: int, peer: Peer, error: NoLongerValid | Rejected) -> None:
        self._rejections[peer.name] = error
        if Reason.of(error) is Reason.BEYOND_CODEC and stage not in self._uncoded:
            self.beyond_codec[stage] = str(error)
        else:
            self._note(stage, peer, error)

    def _end_if_diverged(self) -> None:
        """Raises UsageError: no member of a stage has finite sums. If one has, only the others are at fault."""
        for replies in self.replies:
            reasons = {Reason.of(self._rejections.get(name)) for name in replies}
            if reasons == {Reason.PART_NOT_FINITE}:
                raise self._diverged(*min(self._rejections.items()))

    def _diverged(self, name: str, error: NoLongerValid | Rejected) -> UsageError:
        fact = f"the gradients of step {self._step} add up to no finite number ({name}: {error})"
        return UsageError(f"{fact}; training has diverged: lower the learning rate")

    def _note(self, stage: int, peer: Peer, error: NoLongerValid | Rejected) -> None:
        """Record which members failed: the two that a refusal names, or else the peer that replied."""
        named, why = parties_of(error), f"{peer.name}: {error}"
        if not named or not self.replies[stage].keys() >= set(named):
            self._failures.append(Failure(stage, frozenset([peer.name]), why, peer.name))
        else:
            self._failures.append(Failure(stage, frozenset(named), why, peer.name, named[0]))

    async def _ask_to_resume(self, peer: Peer, keep: bool) -> None:
        with suppress(Rejected):  # the peer has received a request of another round
            await self._client.request_until_reply(peer, Resume(self.name, keep))


def _unconfirmed(failure: Failure) -> Failure:
    """The same failure, between the member that reported it and the member that it had the report from."""
    return failure._replace(members=frozenset([failure.by, failure.through]))
