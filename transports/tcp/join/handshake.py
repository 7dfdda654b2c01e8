"""The handshake: two ranks prove to each other that they hold one key and belong to one run, before any frame is read.

Theory of operation. Every step has a fixed size, so nothing a stranger says is ever trusted for a length:

    connector                                   acceptor
    hello (who I am, whom I want, nonce)   →
                                           ←    hello (who I am, nonce)
    proof of the key over both hellos      →
                                           ←    verdict, and the acceptor's own proof over both hellos

A hello names role, both ranks, world size, run, incarnation and machine, and a proof covers both hellos: one overheard
cannot be replayed, reflected, or used for another rank or run. Without a key the same words are spoken with an empty
one, which proves nothing: whoever opens the transport then stays on loopback. The handshake admits a peer; it neither
encrypts nor seals what follows.

The one rule: no I/O. A dialogue is a generator that yields bytes to be sent, or the number of bytes it wants next.
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
    """Which end of the connection speaks; part of every proof, so that none can be reflected."""

    CONNECTOR = 0
    ACCEPTOR = 1


class Verdict(IntEnum):
    """What the acceptor says after the connector's proof."""

    WELCOME = 0
    WRONG_KEY = 1
    OTHER_RUN = 2
    OTHER_WORLD_SIZE = 3
    OTHER_RANK = 4
    UNEXPECTED = 5


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks.

    Args:
        rank, peer: the speaker's number, and whom it believes it speaks to.
        run: 16 bytes that name the run, the same on every rank.
        incarnation: drawn afresh by every process, so that a restarted rank is not taken for its former self.
        machine: 16 bytes that name the machine it runs on; ranks of one machine name the same.
        nonce: 32 random bytes, drawn afresh for every connection.
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
        """Read a hello that must come from an end of this role.

        Raises:
            WireError: not a rank at all, another version, or the wrong end.
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
    """What a rank says about itself in every hello, and the key it proves (empty: none)."""

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
    """A connector could not prove the key; `claimed` is the rank it said it was, if it named our run, else None.

    Attributes:
        caller: that in words.
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
        AuthenticationError: either side refuses the other's proof.
        RendezvousError: the acceptor refuses for another reason (run, world size, rank).
        WireError: the other end is no rank.
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
    """The acceptor's side; returns the connector's hello. `admit` is asked only about who has proved the key.

    Raises:
        WrongKey: the connector's proof is wrong. RendezvousError: it is refused. WireError: it is no rank.
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
    """The error a verdict stands for, told from the connector's side (`here`)."""
    if verdict not in REFUSALS:
        return WireError(f"an unknown verdict (known: 0 to {max(Verdict)}, got: {verdict})")
    kind, text = REFUSALS[Verdict(verdict)]
    return kind(text.format(here=here, there=there))


def digest(name: str) -> bytes:
    """The 16 bytes that stand for the name of a run or a machine in every hello."""
    return hashlib.sha256(name.encode()).digest()[:16]
