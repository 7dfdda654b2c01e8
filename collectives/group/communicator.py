"""Ranks that exchange bare bytes inside a call of their group, numbered anew from 0.

Both ends of a message know its size beforehand; empty messages are not sent. The first message to each peer in a call
carries a fingerprint as well (see `collectives.group.signature`), which does not count as payload.
"""

from functools import cached_property

from collectives.group.call import Call
from collectives.group.concurrency import run_both
from collectives.group.identity import GroupIdentity
from collectives.group.sequence import CallSequence
from collectives.group.signature import FINGERPRINT_BYTES, Signature
from collectives.group.workspace import Workspace
from transports.errors import SizeMismatch

INLINE_BYTES = 16 << 10
"""Bytes up to which a first message is sent together with its fingerprint: a copy costs less than another message."""


class Communicator:
    """The ranks of a group, or some of them, for messages inside a call of the group.

    Args:
        identity: these ranks.
        calls, workspace: those of the group.
    Attributes:
        transport, ranks, channel, size, rank: those of `identity`.
    """

    def __init__(self, identity: GroupIdentity, calls: CallSequence, workspace: Workspace):
        self.transport, self.ranks, self.channel = identity.transport, identity.ranks, identity.channel
        self.size, self.rank = identity.size, identity.rank
        self._identity, self.calls, self.workspace = identity, calls, workspace

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._identity}"

    @property
    def running(self) -> Call:
        """The running call of the group.

        Raises:
            RuntimeError: there is none.
        """
        return self.calls.running

    async def send(self, target: int, view: memoryview, signature: Signature | None = None) -> None:
        """Send bytes to a rank of the group, inside a call; return when the memory may be reused.

        Args:
            signature: what the first message to this rank carries; None: the signature of the call. Pass one that only
                these two ranks share, for example with the size of the array between them.
        Raises: as `Transport.send_buffer`.
        """
        peer = self.ranks[target]
        call = self.running
        if not view.nbytes:
            return
        if call.mark_sent(peer):
            fingerprint = signature.fingerprint if signature else call.fingerprint
            if view.nbytes <= INLINE_BYTES:
                return await self._send_first(peer, b"".join((fingerprint, view)))
            await self._send_first(peer, fingerprint)
        await self.transport.send_buffer(peer, self.channel, view)

    async def receive(self, source: int, view: memoryview, signature: Signature | None = None) -> None:
        """Fill `view` with the next bytes from a rank of the group, inside a call.

        Args:
            signature: what to compare its first message with; None: the signature of the call.
        Raises: as `Transport.receive_buffer`. Mismatch: the rank called something else.
        """
        peer = self.ranks[source]
        call = self.running
        if not view.nbytes:
            return
        if call.mark_received(peer):
            if view.nbytes <= INLINE_BYTES:
                view[:] = await self._receive_first(peer, call, view.nbytes, signature)
                return
            await self._receive_first(peer, call, 0, signature)
        await self.transport.receive_buffer(peer, self.channel, view)

    async def exchange(self, target: int, outgoing: memoryview, source: int, incoming: memoryview) -> None:
        """Send and receive at once; when either fails, the other is cancelled and the error is raised."""
        await run_both(self.send(target, outgoing), self.receive(source, incoming))

    async def exchange_fingerprints(self, target: int, source: int) -> None:
        """`send_fingerprint` and `check_fingerprint` at once."""
        await run_both(self.send_fingerprint(target), self.check_fingerprint(source))

    async def send_fingerprint(self, target: int, signature: Signature | None = None) -> None:
        """Send a fingerprint alone to a rank, unless an earlier message of the call carried it.

        A collective ends with this and `check_fingerprint` for the ranks with which it may exchange nothing: a rank
        that was called differently may expect, or send, more.
        """
        peer = self.ranks[target]
        call = self.running
        if call.mark_sent(peer):
            await self._send_first(peer, signature.fingerprint if signature else call.fingerprint)

    async def check_fingerprint(self, source: int, signature: Signature | None = None) -> None:
        """Compare the fingerprint that a rank sends alone, unless an earlier message of the call carried it.

        Raises: as `receive`.
        """
        peer = self.ranks[source]
        call = self.running
        if call.mark_received(peer):
            await self._receive_first(peer, call, 0, signature)

    async def _send_first(self, peer: int, packed: bytes) -> None:
        """Send a fingerprint and the bytes after it.

        The transport counts the fingerprint, and this takes it back before any other task runs.
        """
        await self.transport.send_buffer(peer, self.channel, memoryview(packed))
        self.transport.traffic.take_back_sent(peer, FINGERPRINT_BYTES, messages=int(len(packed) == FINGERPRINT_BYTES))

    async def _receive_first(
        self, peer: int, call: Call, nbytes: int = 0, signature: Signature | None = None
    ) -> memoryview:
        """Receive and compare a peer's fingerprint. Returns the bytes after it.

        If the size differs, the fingerprint is still compared first, so that the error names both calls.
        """
        packed = memoryview(bytearray(FINGERPRINT_BYTES + nbytes))
        try:
            await self.transport.receive_buffer(peer, self.channel, packed)
        except SizeMismatch as mismatch:
            if len(mismatch.prefix) >= FINGERPRINT_BYTES:
                call.compare(peer, mismatch.prefix, signature)
            raise
        self.transport.traffic.take_back_received(FINGERPRINT_BYTES, messages=0 if nbytes else 1)
        call.compare(peer, packed, signature)
        return packed[FINGERPRINT_BYTES:]

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The lowest rank of the group on the same node, for each rank of the group."""
        nodes = [self.transport.nodes[rank] for rank in self.ranks]
        return tuple(map(nodes.index, nodes))
