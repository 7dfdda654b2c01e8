"""The handshake: two ranks prove to each other that they hold one key and belong to one run, before any frame is read.

Every step has a fixed size, so no length is ever taken from an unauthenticated peer:

    connector                                   acceptor
    hello (its rank, wanted rank, nonce)   →
                                           ←    hello (its rank, nonce)
    proof of the key over both hellos      →
                                           ←    verdict, and the acceptor's own proof over both hellos

A hello contains role, both ranks, world size, run, incarnation and machine. A proof covers both hellos, so a recorded
proof cannot be replayed, reflected, or used for another rank or run. Without a key both sides use an empty key, which
proves nothing; the transport then allows loopback only. The handshake authenticates the peer; it does not encrypt or
protect the later bytes.

No I/O: a dialogue is a generator that yields bytes to send, or the number of bytes to read next.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct

from transports.errors import AuthenticationError, RendezvousError, TransportError, WireError

MAGIC = b"PPLN"
VERSION = 3
HELLO = Struct("!4sBBIIIQ16s16s32s")
VERDICT = Struct("!B32s")
PROOF_BYTES = 32

Dialogue = Generator[bytes | int, bytes | None, "Hello"]


class Role(IntEnum):
    """The sender's end of the connection; part of every proof, so that a proof cannot be reflected."""

    CONNECTOR = 0
    ACCEPTOR = 1


class Verdict(IntEnum):
    """The acceptor's reply to the connector's proof."""

    WELCOME = 0
    WRONG_KEY = 1
    OTHER_RUN = 2
    OTHER_WORLD_SIZE = 3
    OTHER_RANK = 4
    UNEXPECTED = 5


@dataclass(frozen=True, slots=True)
class Hello:
    """The identity of one end, sent in the handshake.

    Args:
        rank, peer: the sender's rank, and the rank that it expects at the other end.
        run: 16 bytes that identify the run, the same on every rank.
        incarnation: a new random number in every process; distinguishes a rank from itself before a restart.
        machine: 16 bytes that identify the sender's machine, the same for all ranks of one machine.
        nonce: 32 new random bytes for every connection.
    """

    role: Role
    rank: int
    peer: int
    world_size: int
    run: bytes
    incarnation: int
    machine: bytes
    nonce: bytes

    def pack(self) -> bytes:
        numbers = self.role, self.rank, self.peer, self.world_size, self.incarnation
        return HELLO.pack(MAGIC, VERSION, *numbers, self.run, self.machine, self.nonce)

    @classmethod
    def unpack(cls, data: bytes, role: Role) -> "Hello":
        """Parse a hello, which must have this role.

        Raises:
            WireError: wrong magic, another version, or the wrong role.
        """
        magic, version, spoken, rank, peer, world_size, incarnation, run, machine, nonce = HELLO.unpack(data)
        if magic != MAGIC:
            raise WireError(f"a stranger, not a rank, is on the line (first bytes: {data[:8]!r})")
        if version != VERSION:
            raise WireError(f"versions differ (here: {VERSION}, there: {version}); install one release on every rank")
        if spoken != role:
            raise WireError(f"both ends of the connection took one role (role: {spoken})")
        return cls(role, rank, peer, world_size, run, incarnation, machine, nonce)


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that a rank sends in every hello, and the key that it proves (empty: none)."""

    rank: int
    world_size: int
    run: bytes
    incarnation: int
    key: bytes = field(repr=False)
    machine: bytes = bytes(16)

    def hello(self, role: Role, peer: int) -> Hello:
        nonce = secrets.token_bytes(32)
        return Hello(role, self.rank, peer, self.world_size, self.run, self.incarnation, self.machine, nonce)

    def proof(self, role: Role, connector: bytes, acceptor: bytes) -> bytes:
        return hmac.digest(self.key, role.to_bytes(1, "big") + connector + acceptor, "sha256")


class WrongKey(AuthenticationError):
    """A connector could not prove the key; `claimed` is the rank in its hello if it named this run, else None.

    Attributes:
        caller: the same as text.
    """

    def __init__(self, claimed: int | None):
        self.claimed, self.caller = claimed, "a stranger" if claimed is None else f"rank {claimed}"
        super().__init__(f"{self.caller} holds another key or none; {SAME_KEY}")


SAME_KEY = "give every rank the same PIPELINED_KEY or PIPELINED_KEY_FILE"

REFUSALS: dict[Verdict, tuple[type[TransportError], str]] = {
    Verdict.WRONG_KEY: (AuthenticationError, f"this rank's key is not that of rank {{there.rank}}; {SAME_KEY}"),
    Verdict.OTHER_RUN: (RendezvousError, "rank {there.rank} belongs to another run; give each job a port of its own"),
    Verdict.OTHER_WORLD_SIZE: (
        RendezvousError,
        "the ranks disagree on their number (rank {here.rank}: {here.world_size}, rank {there.rank}: "
        "{there.world_size}); start all with one WORLD_SIZE",
    ),
    Verdict.OTHER_RANK: (
        RendezvousError,
        "called for rank {here.peer}, reached rank {there.rank}; check MASTER_ADDR and MASTER_PORT",
    ),
    Verdict.UNEXPECTED: (
        RendezvousError,
        "rank {there.rank} does not expect rank {here.rank} (an old process, or a number outside the "
        "{there.world_size} ranks); end it",
    ),
}


def connecting(me: Identity, peer: int) -> Dialogue:
    """The connector's side; returns the acceptor's hello.

    Raises:
        AuthenticationError: one side refuses the other's proof.
        RendezvousError: the acceptor refuses for another reason (run, world size, rank).
        WireError: the other end is not a rank.
    """
    here = me.hello(Role.CONNECTOR, peer)
    mine = here.pack()
    yield mine
    theirs = yield HELLO.size
    there = Hello.unpack(theirs, Role.ACCEPTOR)
    yield me.proof(Role.CONNECTOR, mine, theirs)
    verdict, proof = VERDICT.unpack((yield VERDICT.size))
    if verdict != Verdict.WELCOME:
        raise refusal(verdict, here, there)
    if not hmac.compare_digest(proof, me.proof(Role.ACCEPTOR, mine, theirs)):
        raise AuthenticationError(f"rank {there.rank} could not prove that it holds the shared key; {SAME_KEY}")
    return there


def accepting(me: Identity, admit: Callable[[Hello], Verdict]) -> Dialogue:
    """The acceptor's side; returns the connector's hello. `admit` is called only after the connector's proof.

    Raises:
        WrongKey: the connector's proof is wrong. RendezvousError: it is refused. WireError: it is not a rank.
    """
    theirs = yield HELLO.size
    there = Hello.unpack(theirs, Role.CONNECTOR)
    here = me.hello(Role.ACCEPTOR, there.rank)
    mine = here.pack()
    yield mine
    proof = yield PROOF_BYTES
    if not hmac.compare_digest(proof, me.proof(Role.CONNECTOR, theirs, mine)):
        yield VERDICT.pack(Verdict.WRONG_KEY, bytes(PROOF_BYTES))
        raise WrongKey(there.rank if there.run == me.run and there.rank < me.world_size else None)
    verdict = judge(me, there, admit)
    yield VERDICT.pack(verdict, me.proof(Role.ACCEPTOR, theirs, mine))
    if verdict != Verdict.WELCOME:
        raise refusal(verdict, there, here)
    return there


def judge(me: Identity, there: Hello, admit: Callable[[Hello], Verdict]) -> Verdict:
    if there.run != me.run:
        return Verdict.OTHER_RUN
    if there.world_size != me.world_size:
        return Verdict.OTHER_WORLD_SIZE
    if there.peer != me.rank:
        return Verdict.OTHER_RANK
    return admit(there)


def refusal(verdict: int, here: Hello, there: Hello) -> TransportError:
    """The error of a verdict, in the connector's view (`here` is the connector's hello)."""
    if verdict not in REFUSALS:
        return WireError(f"an unknown verdict (known: 0 to {max(Verdict)}, got: {verdict})")
    kind, text = REFUSALS[Verdict(verdict)]
    return kind(text.format(here=here, there=there))


def digest(name: str) -> bytes:
    """16 bytes that identify a run or a machine in every hello: the SHA-256 of its name, cut."""
    return hashlib.sha256(name.encode()).digest()[:16]
