"""Requests between members, and their replies: one frozen dataclass each, packed and parsed here alone.

    class Echo(MemberRequest[EchoReply]):          the reply's class stands in the brackets
        topic, sender, receiver = "echo", MemberRole.TRAINER, MemberRole.PEER
        number: Annotated[int, whole()]            see `pipelined.membership.messaging.fields`

On the wire a request is the list [VERSION, incarnation of the receiver, *fields], and a reply is the list of its
fields; arrays are beside them. So a message has no names of fields, and both ends need the same version: a request of
another version is rejected with both numbers.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from pipelined.membership.messaging.fields import FieldList, Malformed, schema_of, whole
from pipelined.membership.messaging.reasons import Reason
from transports import Block
from transports.rpc import Endpoint, Party, Rejected, Request, Response

VERSION = 6
"""The version of the requests and replies of all members. Version 1 sent fields by name; version 2 probed by `status`;
in 3 `prepare` had no lineage; in 4 `totals` had no offset; in 5 `part` and `stage` were `piece` and `place`."""


class MemberRole(Enum):
    """What a member is to a request. The directory must list the sender in its role."""

    TRAINER = "trainer"
    LEADER = "leader"
    PEER = "peer"
    READER = "peer or observer"
    NEWCOMER = "newcomer"
    ANY = "any process"


class OtherVersion(Rejected):
    """A request of another version of the protocol."""

    def __init__(self, version: object):
        shown_version = version if type(version) is int else 1
        super().__init__(Reason.OTHER_VERSION, here=VERSION, there=shown_version)


@dataclass(frozen=True, slots=True)
class MemberReply:
    """A reply. A class without fields says only that the request was carried out."""

    def response(self) -> Response:
        """The reply as an endpoint sends it."""
        blocks: list[Any] = []
        note = _schema(type(self)).write(self, blocks)
        return Response(tuple(blocks), note)

    @classmethod
    def parse(cls, note: Any, blocks: Sequence[Block]) -> Self:
        """Read a reply. Raises Malformed."""
        return _parse(cls, note, blocks)


Reply = TypeVar("Reply", bound=MemberReply)
AnyRequest = TypeVar("AnyRequest", bound="MemberRequest[Any]")


@dataclass(frozen=True, slots=True)
class MemberRequest(Generic[Reply]):
    """A request to a member.

    Attributes:
        topic: its name on the wire.
        sender, receiver: the roles of the two ends.
        rejections: the reasons with which the receiver may reject it, beside those of every request.
    """

    topic: ClassVar[str]
    sender: ClassVar[MemberRole]
    receiver: ClassVar[MemberRole]
    rejections: ClassVar[tuple[Reason, ...]] = ()

    def packed(self, incarnation: int = 0) -> tuple[list[Any], list[Any]]:
        """The note and the arrays of this request.

        Args:
            incarnation: of the receiver; 0: any.
        """
        blocks: list[Any] = []
        return [VERSION, incarnation, *_schema(type(self)).write(self, blocks)], blocks

    @classmethod
    def parse(cls, request: Request) -> tuple[Self, int]:
        """Read a request. Returns it with the incarnation of the receiver for which it is meant; 0: any.

        Raises:
            Malformed, OtherVersion.
        """
        note = request.note
        if type(note) is not list or not note or note[0] != VERSION:
            raise OtherVersion(note[0] if type(note) is list and note else None)
        incarnation = whole().read(note[1] if len(note) > 1 else None, deque())
        return _parse(cls, note[2:], request.blocks), incarnation

    @classmethod
    @cache
    def reply(cls) -> type[Reply]:
        return next(get_args(base)[0] for base in cls.__orig_bases__)  # type: ignore[attr-defined]


async def send(endpoint: Endpoint, address: str, request: MemberRequest[Reply], incarnation: int = 0) -> Reply:
    """Send a request to a member, and return its reply.

    Args:
        incarnation: of the member; 0: any.
    Raises:
        Malformed: the reply cannot be read. Rejected, Unreachable, WireError: as `Endpoint.request`.
    """
    note, blocks = request.packed(incarnation)
    response = await endpoint.request(address, request.topic, *blocks, note=note)
    return request.reply().parse(response.note, response.blocks)


def handle_requests(
    endpoint: Endpoint,
    kind: type[AnyRequest],
    handler: Callable[[AnyRequest, Party], Awaitable[MemberReply]],
    max_waiting: int = 1024,
) -> None:
    """Handle a kind of request without arrays, for any incarnation of this member.

    Args:
        handler: returns the reply to a request and its sender.
        max_waiting: requests of one sender that may wait at once.
    """

    async def respond(request: Request) -> Response:
        return (await handler(kind.parse(request)[0], request.sender)).response()

    endpoint.handle(kind.topic, respond, 0, max_waiting)


def _schema(cls: type) -> FieldList:
    schema = schema_of(cls)
    assert isinstance(schema, FieldList)
    return schema


def _parse(cls: type, note: Any, blocks: Sequence[Block]) -> Any:
    unread_blocks = deque(blocks)
    message = _schema(cls).read(note, unread_blocks)
    if unread_blocks:
        raise Malformed(f"more arrays than {cls.__name__} has (arrays: {len(blocks)}, too many: {len(unread_blocks)})")
    return message


@dataclass(frozen=True, slots=True)
class Done(MemberReply):
    """The request was carried out."""


@dataclass(frozen=True, slots=True)
class Ping(MemberRequest[Done]):
    """Reply at once, beside all other work: the reply shows that this process runs and can be reached."""

    topic = "ping"
    sender = MemberRole.ANY
    receiver = MemberRole.PEER
