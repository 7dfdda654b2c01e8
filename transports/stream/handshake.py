"""The handshake: two ends prove to each other that they hold one key, before any frame is read.

Every step has a fixed size, so no length is ever taken from an unauthenticated peer:

    connector                                   acceptor
    hello                                  →
                                           ←    hello
    proof of the key over both hellos      →
                                           ←    verdict, and the acceptor's own proof over both hellos

A hello names its sender and the end that the sender expects; ranks (`transports.tcp.join.identity`) and endpoints
(`transports.rpc.tcp.identity`) have hellos of their own. A proof covers both hellos, so a recorded proof cannot be
replayed, reflected, or used for another end. Without a key both sides use an empty key, which proves nothing; then only
loopback is allowed. The handshake authenticates the peer; it does not encrypt or protect the later bytes.

No I/O: a dialogue is a generator that yields bytes to send, or the number of bytes to read next.
"""

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from enum import IntEnum
from struct import Struct
from typing import Generic, TypeVar

from transports.errors import SAME_RELEASE, AuthenticationError, TransportError, WireError
from transports.stream.shared_key import SAME_KEY, UnprovenKey

VERSION = 4
PREFIX = Struct("!4sBB")  # kind of hello, version, role
VERDICT = Struct("!B32s")
NONCE_BYTES = PROOF_BYTES = 32


class Role(IntEnum):
    """The sender's end of the connection; part of every proof, so that a proof cannot be reflected."""

    CONNECTOR = 0
    ACCEPTOR = 1


class Verdict(IntEnum):
    """The acceptor's reply to the connector's proof."""

    ACCEPTED = 0
    WRONG_KEY = 1
    OTHER_RUN = 2
    OTHER_WORLD_SIZE = 3
    OTHER_PEER = 4
    UNEXPECTED = 5


class Hello(ABC):
    """The identity of one end, sent in the handshake, with a nonce: 32 new random bytes for every connection."""

    @abstractmethod
    def pack(self) -> bytes:
        """The bytes of the hello: `PREFIX`, then fields of its kind."""


H = TypeVar("H", bound=Hello)
P = TypeVar("P")
Handshake = Generator[bytes | int, bytes, H]


class Identity(ABC, Generic[H, P]):
    """One end as it presents itself to others, by hellos of type H.

    It names the other ends by values of type P: ranks, or ports.

    Attributes:
        shared_key: what it proves; empty: none.
        hello_bytes: the size of a hello.
    """

    shared_key: bytes
    hello_bytes: int

    @abstractmethod
    def hello(self, role: Role, peer: P) -> H:
        """A new hello, for this peer."""

    @abstractmethod
    def reply(self, hello: H) -> H:
        """A new hello of an acceptor, for the sender of this one."""

    @abstractmethod
    def parse(self, data: bytes, role: Role) -> H:
        """Parse a hello, which must have this role. Raises WireError."""

    @abstractmethod
    def verify(self, hello: H) -> Verdict:
        """Whether the sender, which has proved its key, means this end."""

    @abstractmethod
    def refusal(self, verdict: Verdict, connector: H, acceptor: H) -> TransportError:
        """The error of both ends for a verdict other than ACCEPTED."""

    @abstractmethod
    def describe(self, hello: H) -> str:
        """The sender of a hello, for errors; "an unknown caller" if its hello names another network."""

    def proof(self, role: Role, connector: bytes, acceptor: bytes) -> bytes:
        return hmac.digest(self.shared_key, role.to_bytes(1, "big") + connector + acceptor, "sha256")


def connecting(me: Identity[H, P], peer: P) -> Handshake[H]:
    """The connector's side; returns the acceptor's hello.

    Raises:
        AuthenticationError: one side refuses the other's proof. WireError: no end of this kind answers.
        TransportError: the acceptor refuses for another reason; see `Identity.refusal`.
    """
    local = me.hello(Role.CONNECTOR, peer)
    own_hello = local.pack()
    yield own_hello
    peer_hello = yield me.hello_bytes
    remote = me.parse(peer_hello, Role.ACCEPTOR)
    yield me.proof(Role.CONNECTOR, own_hello, peer_hello)
    verdict, proof = VERDICT.unpack((yield VERDICT.size))
    if verdict not in list(Verdict):
        raise WireError(f"an unknown verdict (known: 0 to {max(Verdict):d}, got: {verdict})")
    if verdict != Verdict.ACCEPTED:
        raise me.refusal(Verdict(verdict), local, remote)
    if not hmac.compare_digest(proof, me.proof(Role.ACCEPTOR, own_hello, peer_hello)):
        raise AuthenticationError(f"{me.describe(remote)} could not prove that it holds the shared key; {SAME_KEY}")
    return remote


def accepting(me: Identity[H, P], admit: Callable[[H], Verdict]) -> Handshake[H]:
    """The acceptor's side; returns the connector's hello. `admit` is called only after the connector's proof.

    Raises:
        UnprovenKey: the connector's proof is wrong. WireError: the connector is no end of this kind.
        TransportError: it is refused; see `Identity.refusal`.
    """
    peer_hello = yield me.hello_bytes
    remote = me.parse(peer_hello, Role.CONNECTOR)
    local = me.reply(remote)
    own_hello = local.pack()
    yield own_hello
    proof = yield PROOF_BYTES
    if not hmac.compare_digest(proof, me.proof(Role.CONNECTOR, peer_hello, own_hello)):
        yield VERDICT.pack(Verdict.WRONG_KEY, bytes(PROOF_BYTES))
        raise UnprovenKey(me.describe(remote))
    verdict = me.verify(remote)
    if verdict is Verdict.ACCEPTED:
        verdict = admit(remote)
    yield VERDICT.pack(verdict, me.proof(Role.ACCEPTOR, peer_hello, own_hello))
    if verdict is not Verdict.ACCEPTED:
        raise me.refusal(verdict, remote, local)
    return remote


def check_prefix(data: bytes, kind: bytes, role: Role) -> None:
    """Check the first bytes of a hello.

    Raises:
        WireError: another kind of hello (or none), another version, or the wrong role.
    """
    magic, version, peer_role = PREFIX.unpack_from(data)
    if magic != kind:
        raise WireError(f"not a hello of this program (first bytes: {data[:8]!r}, expected: {kind!r})")
    if version != VERSION:
        raise WireError(f"versions differ (here: {VERSION}, there: {version}); {SAME_RELEASE}")
    if peer_role != role:
        raise WireError(f"both ends of the connection took one role (role: {peer_role})")
