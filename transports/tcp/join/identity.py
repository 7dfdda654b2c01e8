"""The identity of a rank: the fields of its hello, and which other ranks it accepts in the handshake."""

import hashlib
import secrets
from dataclasses import dataclass, field
from struct import Struct

from transports.errors import AuthenticationError, RendezvousError, TransportError
from transports.stream.handshake import NONCE_BYTES, VERSION, Hello, Identity, Role, Verdict, check_prefix
from transports.stream.shared_key import SAME_KEY

MAGIC = b"PPLN"
HELLO = Struct("!4sBBIIIQ16s16s32s")


@dataclass(frozen=True, slots=True)
class RankHello(Hello):
    """A rank as it presents itself.

    Args:
        rank, peer: the sender's rank, and the rank that it expects at the other end.
        incarnation: a new random number in every process; distinguishes a rank from itself before a restart.
        run: 16 bytes that identify the run, the same on every rank.
        machine: 16 bytes that identify the sender's machine, the same for all ranks of one machine.
    """

    role: Role
    rank: int
    peer: int
    world_size: int
    incarnation: int
    run: bytes
    machine: bytes
    nonce: bytes

    def pack(self) -> bytes:
        numbers = self.role, self.rank, self.peer, self.world_size, self.incarnation
        return HELLO.pack(MAGIC, VERSION, *numbers, self.run, self.machine, self.nonce)


REFUSALS: dict[Verdict, tuple[type[TransportError], str]] = {
    Verdict.WRONG_KEY: (AuthenticationError, f"this rank's key is not that of rank {{remote.rank}}; {SAME_KEY}"),
    Verdict.OTHER_RUN: (RendezvousError, "rank {remote.rank} belongs to another run; give each job a port of its own"),
    Verdict.OTHER_WORLD_SIZE: (
        RendezvousError,
        "the ranks disagree on their number (rank {local.rank}: {local.world_size}, rank {remote.rank}: "
        "{remote.world_size}); start all with one WORLD_SIZE",
    ),
    Verdict.OTHER_PEER: (
        RendezvousError,
        "wanted rank {local.peer}, connected to rank {remote.rank}; check MASTER_ADDR and MASTER_PORT",
    ),
    Verdict.UNEXPECTED: (
        RendezvousError,
        "rank {remote.rank} does not expect rank {local.rank} (an old process, or a number outside the "
        "{remote.world_size} ranks); end it",
    ),
}
"""The error of each verdict, in the connector's view (`local` is the connector's hello)."""


@dataclass(frozen=True, slots=True)
class RankIdentity(Identity[RankHello, int]):
    """The fields that a rank sends in every hello, and the key that it proves (empty: none)."""

    hello_bytes = HELLO.size
    rank: int
    world_size: int
    run: bytes
    incarnation: int
    shared_key: bytes = field(repr=False)
    machine: bytes = bytes(16)

    def hello(self, role: Role, peer: int) -> RankHello:
        return RankHello(
            role=role,
            rank=self.rank,
            peer=peer,
            world_size=self.world_size,
            incarnation=self.incarnation,
            run=self.run,
            machine=self.machine,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )

    def reply(self, hello: RankHello) -> RankHello:
        return self.hello(Role.ACCEPTOR, hello.rank)

    def parse(self, data: bytes, role: Role) -> RankHello:
        check_prefix(data, MAGIC, role)
        return RankHello(role, *HELLO.unpack(data)[3:])

    def verify(self, hello: RankHello) -> Verdict:
        if hello.run != self.run:
            return Verdict.OTHER_RUN
        if hello.world_size != self.world_size:
            return Verdict.OTHER_WORLD_SIZE
        return Verdict.ACCEPTED if hello.peer == self.rank else Verdict.OTHER_PEER

    def refusal(self, verdict: Verdict, connector: RankHello, acceptor: RankHello) -> TransportError:
        kind, text = REFUSALS[verdict]
        return kind(text.format(local=connector, remote=acceptor))

    def describe(self, hello: RankHello) -> str:
        return f"rank {hello.rank}" if hello.run == self.run and hello.rank < self.world_size else "an unknown caller"


def digest(name: str) -> bytes:
    """16 bytes that identify a run or a machine in every hello: the SHA-256 of its name, cut."""
    return hashlib.sha256(name.encode()).digest()[:16]
