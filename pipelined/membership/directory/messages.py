"""The messages between clients and an embedded directory: one class a request; every field is checked when it arrives.

A request is one msgpack map of its fields. A reply is one msgpack map: the result, or `conflict`. Every other outcome
is a rejection with a reason that stands for an exception on both sides.

They are not built on `membership.messaging`: those requests fit into a note of 64 KiB and go to members of one version.
A transaction may have a megabyte, so it is a block. Its limits are those of the server that it goes to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

import msgpack

from pipelined.membership.directory.api import Change, Entry, FellBehind, Full, LeaseLost, Prefixes
from pipelined.membership.directory.limits import DirectoryLimits, check_length_of_time, check_whole
from transports.rpc import Rejected, Request, Response

TOPIC = "directory."
ALIVE = TOPIC + "alive"
"""Topic of the directory's request to a client: is it alive? The reply has the client's incarnation as its note."""
OTHER_DIRECTORY, STOPPING = "another directory", "stopping"
OVERHEAD = 64
"""Upper limit of the bytes that a key adds to a request, in addition to itself and its value."""


class StaleRequest(Exception):
    """The client has settled this request, or was forgotten; the request must not be carried out."""


ERRORS: dict[str, type[Exception]] = {
    "lease lost": LeaseLost,
    "fell behind": FellBehind,
    "full": Full,
    "stale request": StaleRequest,
    "bad request": ValueError,
}


def rejection_of(error: Exception) -> Rejected:
    reason = next(reason for reason, kind in ERRORS.items() if isinstance(error, kind))
    return Rejected(reason, why=str(error))


def error_of(rejection: Rejected) -> Exception:
    """The error that a rejection stands for; the rejection itself if its reason is not in `ERRORS`."""
    kind = ERRORS.get(rejection.reason)
    return kind(str(rejection.facts.get("why", rejection.reason))) if kind else rejection


def max_bytes(limits: DirectoryLimits) -> int:
    """Upper limit of the bytes of a request."""
    return limits.request + OVERHEAD * 3 * limits.keys_at_once + 4 * OVERHEAD


def pack(message: Mapping[str, Any]) -> bytes:
    return msgpack.packb(message)


def unpack(response: Response) -> dict[str, Any]:
    """The message of a reply."""
    return msgpack.unpackb(response.blocks[0].data, strict_map_key=False)


def _unpack_checked(request: Request, max_items: int) -> dict[str, Any]:
    """The message of a request, with few containers of at most `max_items` items each. Raises ValueError: malformed."""
    if len(request.blocks) != 1:
        raise ValueError(f"a message is one block (blocks: {len(request.blocks)})")
    count = _Containers()
    sizes = {"max_array_len": max_items, "max_map_len": max_items}
    hooks = {"list_hook": count, "object_hook": count}
    try:
        message = msgpack.unpackb(request.blocks[0].data, strict_map_key=False, **sizes, **hooks)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a map whose key is a list
        raise ValueError(f"not a message: {type(error).__name__} {error}".rstrip()) from error
    if not isinstance(message, dict):
        raise ValueError(f"a message is a map (it is: {type(message).__name__})")
    return message


class _Containers:
    """Limits the lists and maps of a message while it is parsed: an empty one takes 60 times its bytes in memory."""

    limit = 4

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, container: Any) -> Any:
        self._count += 1
        if self._count > self.limit:
            raise ValueError(f"too many lists and maps (most: {self.limit})")
        return container


FieldCheck = Callable[[str, Any, DirectoryLimits], object]
"""Checks the value of the field of this name. Raises ValueError: it is missing, malformed or beyond a limit."""


def _check_kind(kind: type, name: str, value: object) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is no {kind.__name__} (type: {type(value).__name__})")


WholeNumber = Annotated[int, lambda name, value, limits: check_whole(name, value)]
LengthOfTime = Annotated[float, lambda name, value, limits: check_length_of_time(name, value)]
LeaseSeconds = Annotated[float, lambda name, value, limits: limits.check_seconds(value)]
RequestPrefixes = Annotated[Prefixes, lambda name, value, limits: limits.check_prefixes(value)]
ExpectedRevisions = Annotated[dict[str, int], lambda name, value, limits: _check_kind(dict, name, value)]
PutValues = Annotated[dict[str, bytes], lambda name, value, limits: _check_kind(dict, name, value)]
DeletedKeys = Annotated[list[str], lambda name, value, limits: _check_kind(list, name, value)]
"""The types of the fields of requests, each with its check. `Transact` checks the items of the last three."""


@dataclass(frozen=True)
class ClientRequest:
    """A request of a client; each field is annotated with its check."""

    topic: ClassVar[str]
    _checks: ClassVar[Mapping[str, FieldCheck]] = {}

    def __init_subclass__(cls) -> None:
        """Raises TypeError: a field has no check."""
        hints = get_type_hints(cls, include_extras=True)
        names = [name for name, hint in hints.items() if get_origin(hint) is not ClassVar]
        for name in names:
            if get_origin(hints[name]) is not Annotated:
                raise TypeError(f"{cls.__name__}.{name} has no check; annotate it, as with `WholeNumber`")
        cls._checks = {name: get_args(hints[name])[1] for name in names}

    def check(self, limits: DirectoryLimits) -> None:
        """Raises ValueError: a field is missing, malformed or beyond a limit."""
        for name, check in self._checks.items():
            check(name, getattr(self, name), limits)

    @classmethod
    def parse(cls, request: Request, limits: DirectoryLimits) -> Self:
        """Read and check a request. Raises ValueError: as `check`, or it is no message."""
        message = _unpack_checked(request, limits.keys_at_once)
        values = {field.name: message.get(field.name) for field in fields(cls)}
        if isinstance(prefix := values.get("prefix"), list):
            values["prefix"] = tuple(prefix)
        parsed = cls(**values)
        parsed.check(limits)
        return parsed


@dataclass(frozen=True)
class Enter(ClientRequest):
    """Request a client number, and the directory's name and address."""

    topic = TOPIC + "enter"


@dataclass(frozen=True)
class Entered:
    """The reply to `Enter`.

    Args:
        name: a number that the directory drew when it began, for all further requests.
        client: the number of the client; None: the directory has forgotten it, so it must enter again.
        address: of the directory.
    """

    name: int
    client: int | None
    address: str


@dataclass(frozen=True)
class NamedRequest(ClientRequest):
    """A request to the directory of this name; any other directory rejects it."""

    name: WholeNumber


@dataclass(frozen=True)
class Read(NamedRequest):
    """Read all entries under these prefixes."""

    topic = TOPIC + "read"
    prefix: RequestPrefixes


@dataclass(frozen=True)
class Watch(Read):
    """Read the changes under these prefixes, as soon as there are any.

    Args:
        after: the revision after which the changes are requested.
        wait: seconds after which the reply comes without a change.
    """

    topic = TOPIC + "changes"
    after: WholeNumber
    wait: LengthOfTime


class RequestId(NamedTuple):
    """Identifies one request.

    Args:
        client: the number that the directory gave to the client.
        number: of the request; each client counts upwards.
        settled: the client has received the replies of all requests with smaller numbers, or given them up.
    """

    client: int
    number: int
    settled: int


@dataclass(frozen=True)
class NumberedRequest(NamedRequest):
    """A request that is carried out at most once; the fields are those of `RequestId`."""

    client: WholeNumber
    number: WholeNumber
    settled: WholeNumber

    @property
    def id(self) -> RequestId:
        return RequestId(self.client, self.number, self.settled)


@dataclass(frozen=True)
class Transact(NumberedRequest):
    """See `Directory.transact`.

    Args:
        lease: number of the lease of the keys that are put; 0: none.
    """

    topic = TOPIC + "transact"
    expect: ExpectedRevisions
    put: PutValues
    delete: DeletedKeys
    lease: WholeNumber

    def check(self, limits: DirectoryLimits) -> None:
        super().check(limits)
        limits.check_transaction(self.expect, self.put, self.delete)


@dataclass(frozen=True)
class Grant(NumberedRequest):
    """Grant a lease.

    Args:
        seconds: of the lease.
        grace: seconds for which it lasts after the connection to its owner breaks.
    """

    topic = TOPIC + "grant"
    seconds: LeaseSeconds
    grace: LengthOfTime


@dataclass(frozen=True)
class Revoke(NamedRequest):
    """End a lease."""

    topic = TOPIC + "revoke"
    lease: WholeNumber


@dataclass(frozen=True)
class Renew(Revoke):
    """Renew a lease; `grace` as in `Grant`."""

    topic = TOPIC + "renew"
    grace: LengthOfTime


def pack_entries(entries: Mapping[str, Entry | None]) -> list[Any]:
    """Entries by key, as plain lists."""
    return [[key, entry and list(entry)] for key, entry in entries.items()]


def unpack_entries(packed: Any) -> dict[str, Entry | None]:
    """The inverse of `pack_entries`."""
    return {key: entry and Entry(*entry) for key, entry in packed}


def pack_changes(revisions: Sequence[Sequence[Change]]) -> list[Any]:
    """Changes as plain lists, one item per revision."""
    return [
        [changes[0].revision, pack_entries({change.key: change.entry for change in changes})] for changes in revisions
    ]


def unpack_changes(packed: Any) -> list[Change]:
    """The inverse of `pack_changes`, as one flat list."""
    return [
        Change(key, entry, revision) for revision, entries in packed for key, entry in unpack_entries(entries).items()
    ]
