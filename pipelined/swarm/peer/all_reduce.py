"""The sum of a stage's gradients over its peers: an all-reduce in which each member adds the parts of one slice.

A round has a name and a fixed list of members. It ends with equal bits on every member, or it is aborted and changes
nothing: the gradients are only read. A slice is sent in chunks, so that adding and sending overlap. With a codec the
slice's owner decodes the very bytes that it sends, so replicas stay equal to the bit. A member that sends the last part
may leave before the total is ready, so the owner adds and encodes in a task of its own.

Cost: each member sends and receives 2(M-1)/M of the gradients' bytes (less with a codec), in two steps a chunk.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelined.aio.tasks import Spread
from pipelined.membership.messaging.messages import send
from pipelined.membership.messaging.reasons import Reason
from pipelined.swarm.protocol.rounds import (
    PartTotal,
    RoundMember,
    RoundName,
    RoundReport,
    SendPart,
    lost_between,
    parties_of,
)
from pipelined.swarm.stages.swarm_stage import Coded, Coding, add_sums
from transports import Block, Nursery, WireError
from transports.aio.futures import resolve
from transports.rpc import Endpoint, Party, Rejected, Unreachable

IN_FLIGHT = 4  # chunks requested at once from one owner
MAX_GATHERED_BYTES = 256 << 20
"""Most bytes of others' parts that an owner holds: the more members, the smaller the chunks."""
MAX_WHY = 120
"""Characters of one member's reason that another passes on."""


@dataclass
class _Chunk:
    """What one owner gathers for one chunk.

    Attributes:
        senders: positions of the members that sent a part.
        parts: by position, the members' parts, until they are added.
        complete: done when all members have sent theirs.
        total: the total as it is sent to all members.
    """

    senders: set[int] = field(default_factory=set)
    parts: dict[int, np.ndarray] = field(default_factory=dict)
    complete: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    total: "asyncio.Future[Coded]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AllReduce:
    """One member's part in one all-reduce.

    Args:
        name: the same for all members, never used twice; a later round's is greater.
        members: in the order in which sums are added.
        own_position: of this member.
        sums: this member's sums, flat; not written to.
        maxima: how many of the last values are combined by the larger, see `add_sums`.
        coding: the coding of the arrays that are sent.
        chunk_bytes: largest chunk of the sums, the same for all members.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: RoundName,
        members: Sequence[RoundMember],
        own_position: int,
        sums: np.ndarray,
        *,
        coding: Coding,
        chunk_bytes: int,
        maxima: int = 0,
    ):
        self.name = name
        self._members = members
        self._own_position = own_position
        self._coding = coding
        self._endpoint, self._sums, self._maxima = endpoint, sums, maxima
        self._bounds = np.linspace(0, sums.size, len(members) + 1).astype(int)
        self._chunk_size = max(1, min(chunk_bytes, MAX_GATHERED_BYTES // (IN_FLIGHT * len(members))) // sums.itemsize)
        self._chunks: dict[int, _Chunk] = {}
        self._rejection: Rejected | None = None
        self._scope: asyncio.Timeout | None = None
        self._pending_totals = Counter[int]()
        self._last_part_at = dict.fromkeys(range(len(members)), asyncio.get_running_loop().time())
        self._last_total_at = dict(self._last_part_at)

    async def run(self, spread: Spread) -> np.ndarray:
        """Take part, and return the total.

        Args:
            spread: decides when this member's parts are sent.
        Raises:
            Rejected: "round aborted" here; "lost", with the two members between which it failed (`by`, `member`).
        """
        total = np.empty_like(self._sums)
        try:
            async with asyncio.timeout(None) as self._scope, Nursery() as tasks:
                for owner in range(len(self._members)):
                    tasks.create_task(self._gather(owner, total, spread))
        except TimeoutError:
            if self._rejection is None:  # then it is not from this time-out, which only `abort` sets
                raise
            raise self._rejection from None
        except BaseException as error:
            self._scope = None
            self.abort(str(error), parties_of(error))
            raise
        self._scope = None
        return total

    async def receive_part(self, request: SendPart, sender: Party) -> PartTotal:
        """Receive a member's part of one of this owner's chunks, and reply with the total.

        A second part of one member, or a part in another's name, is refused and changes nothing. A part that cannot be
        added aborts the round, with the name of its sender: without its part there is no total.

        Raises:
            Rejected: the round was aborted, or the part does not belong to it.
        """
        position, start = request.position, request.start
        if position >= len(self._members) or self._members[position].address != sender.address:
            raise Rejected(Reason.UNEXPECTED_PART, position=position)
        chunk = self._chunk(start)
        if position in chunk.senders:
            raise Rejected(Reason.UNEXPECTED_PART, position=position)
        chunk.senders.add(position)
        try:
            self._add_part(chunk, position, await self._decode_part(request.part, self._span(start)))
        except Rejected as rejection:
            self.abort(str(rejection), (self._members[self._own_position].name, self._members[position].name))
            raise
        return PartTotal(await asyncio.shield(chunk.total))

    @property
    def awaited(self) -> RoundReport:
        """The members for which this one waits: those that have not sent the first of its chunks that is incomplete,
        and the owners that owe it the total of a chunk. Neither includes this member.
        """
        now = asyncio.get_running_loop().time()
        positions = self._lacking_positions()
        names = [member.name for member in self._members]
        parts = {names[position]: now - self._last_part_at[position] for position in positions}
        totals = {names[position]: now - self._last_total_at[position] for position in self._pending_totals}
        return RoundReport(parts=parts, totals=totals)

    def _lacking_positions(self) -> list[int]:
        """Members, by position, that the first incomplete chunk lacks: one may wait for its total to send the next."""
        for start in self._starts(self._own_position):
            chunk = self._chunks.get(start)
            senders = chunk.senders if chunk else set[int]()
            if chunk is None or not chunk.complete.done():
                return [
                    position
                    for position in range(len(self._members))
                    if position != self._own_position and position not in senders
                ]
        return []

    def abort(self, why: str, parties: tuple[str, str] | None = None) -> None:
        """Abort the round; waiting requests are refused. `parties`: the two members between which it failed."""
        if self._rejection:
            return
        facts = dict(zip(("by", "member"), parties or (), strict=False))
        self._rejection = Rejected(Reason.ABORTED, why=why, **facts)
        if self._scope and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())
        for chunk in self._chunks.values():
            resolve(chunk.total, self._rejection)

    async def _gather(self, owner: int, total: np.ndarray, spread: Spread) -> None:
        """Send one owner this member's part of its slice, chunk by chunk, and store the totals.

        The sends to different owners alternate, and each member begins with the owner after itself.
        """
        starts = self._starts(owner)
        free_requests = asyncio.Semaphore(IN_FLIGHT)
        other_members = len(self._members) - 1
        turn = (owner - self._own_position - 1) % len(self._members)

        async def sum_chunk(number: int, start: int) -> None:
            async with free_requests:
                span = self._span(start)
                if owner == self._own_position:
                    total[span] = await self._reduce_own(start, span)
                else:
                    await spread.wait_for((number + turn / other_members) / len(starts))
                    total[span] = await self._send_part(owner, start, span)

        async with Nursery() as tasks:
            for number, start in enumerate(starts):
                tasks.create_task(sum_chunk(number, start))

    async def _reduce_own(self, start: int, span: slice) -> np.ndarray:
        chunk = self._chunk(start)
        _check_finite(self._sums[span])
        self._add_part(chunk, self._own_position, self._sums[span])
        await chunk.complete
        coded = await self._encode(self._add_all(chunk, span), Reason.NOT_FINITE)
        chunk.parts = {}
        resolve(chunk.total, coded)
        return await self._decode(coded, span)

    async def _send_part(self, owner: int, start: int, span: slice) -> np.ndarray:
        member = self._members[owner]
        part = await self._encode(self._sums[span], Reason.PART_NOT_FINITE)
        request = SendPart(self.name, self._own_position, start, part)
        self._pending_totals[owner] += 1
        try:
            reply = await send(self._endpoint, member.address, request, member.incarnation)
            self._last_total_at[owner] = asyncio.get_running_loop().time()
            return await self._decode(reply.total, span)
        except (Unreachable, Rejected) as error:
            _check_finite(self._sums[span])
            raise self._loss_of(member, error) from error
        finally:
            self._pending_totals -= Counter([owner])

    def _loss_of(self, owner: RoundMember, error: Unreachable | Rejected) -> Rejected:
        """The refusal for an owner that sent no total; if the round failed between two other members, it names them."""
        reporter, member = parties_of(error) or (self._members[self._own_position].name, owner.name)
        return lost_between(reporter, member, str(error)[:MAX_WHY])

    def _add_part(self, chunk: _Chunk, position: int, part: np.ndarray) -> None:
        chunk.parts[position] = part
        self._last_part_at[position] = asyncio.get_running_loop().time()
        if len(chunk.parts) == len(self._members):
            resolve(chunk.complete)  # it is cancelled if the round ended while this part was decoded

    def _add_all(self, chunk: _Chunk, span: slice) -> np.ndarray:
        """Add the parts in the members' order: the same bits in any order of arrival."""
        total = chunk.parts[0].copy()
        values_after = self._sums.size - span.stop
        for position in range(1, len(self._members)):
            add_sums(total, chunk.parts[position], max(0, self._maxima - values_after))
        return total

    def _chunk(self, start: int) -> _Chunk:
        """What is gathered for the chunk that begins here; it must be one of this member's."""
        if self._rejection:
            raise self._rejection
        if start not in self._starts(self._own_position):
            raise Rejected(Reason.UNEXPECTED_PART, start=start)
        return self._chunks.setdefault(start, _Chunk())

    def _starts(self, owner: int) -> range:
        """Where the chunks of an owner's slice begin."""
        return range(self._bounds[owner], self._bounds[owner + 1], self._chunk_size)

    def _span(self, start: int) -> slice:
        owner = int(np.searchsorted(self._bounds, start, side="right")) - 1
        return slice(start, min(start + self._chunk_size, self._bounds[owner + 1]))

    async def _decode_part(self, coded: Coded, span: slice) -> np.ndarray:
        """Another member's part, decoded. Raises Rejected: it cannot be added."""
        part = await self._decode(coded, span)
        if not np.isfinite(part).all():
            raise Rejected(Reason.NOT_FINITE, start=span.start)
        return part

    async def _encode(self, values: np.ndarray, reason: Reason) -> Coded:
        """Encode values as they travel. Raises Rejected: "beyond codec" if they are finite, else `reason`."""
        try:
            return await self._coding.pack([values], "gradient sums")
        except WireError as error:
            is_finite = np.isfinite(values).all()
            raise Rejected(Reason.BEYOND_CODEC if is_finite else reason, why=str(error)) from error

    async def _decode(self, coded: Coded, span: slice) -> np.ndarray:
        """Decode received numbers. Raises Rejected: they are not as many as the span has."""
        max_bytes = (span.stop - span.start) * self._sums.itemsize
        blocks = [Block.of(block) for block in await self._coding.unpack(*coded, max_bytes)]
        if [(block.dtype, block.shape) for block in blocks] != [(self._sums.dtype.name, (span.stop - span.start,))]:
            raise Rejected(Reason.UNEXPECTED_PART, arrays=str([(block.dtype, block.shape) for block in blocks])[:80])
        return blocks[0].numpy()


def _check_finite(part: np.ndarray) -> None:
    """Raises Rejected: this member's own part is not finite."""
    if not np.isfinite(part).all():
        raise Rejected(Reason.PART_NOT_FINITE)
