"""The messages between clients and an embedded directory, to and from bytes; every part of a request is checked.

A request is one msgpack map: the directory's name and the fields of its topic. A reply is one msgpack map: the result,
or `conflict`. Every other outcome is a rejection with a reason that stands for an exception on both sides.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from pipelined.directory.api import Change, Entry, FellBehind, Full, LeaseLost, Prefixes
from pipelined.directory.dedup import DirectoryRequest, StaleRequest
from pipelined.directory.limits import DirectoryLimits, check_length_of_time, check_whole
from transports.rpc import Rejected, Request, Response

TOPIC = "directory."
ENTER, READ, CHANGES, TRANSACT, GRANT, RENEW, REVOKE = (
    TOPIC + each for each in ("enter", "read", "changes", "transact", "grant", "renew", "revoke")
)
ALIVE = TOPIC + "alive"
"""Topic of the directory's request to a client: is it alive? The reply has the client's incarnation as its note."""
ANOTHER, STOPPING = "another directory", "stopping"
OVERHEAD = 64
"""Upper limit of the bytes that a key adds to a request, in addition to itself and its value."""

MEANINGS: dict[str, type[Exception]] = {
    "lease lost": LeaseLost,
    "fell behind": FellBehind,
    "full": Full,
    "stale request": StaleRequest,
    "bad request": ValueError,
}


def rejection_of(error: Exception) -> Rejected:
    """The rejection for an error."""
    reason = next(reason for reason, kind in MEANINGS.items() if isinstance(error, kind))
    return Rejected(reason, why=str(error))


def error_of(rejection: Rejected) -> Exception:
    """The error that a rejection stands for; the rejection itself if its reason is not in `MEANINGS`."""
    kind = MEANINGS.get(rejection.reason)
    return kind(str(rejection.facts.get("why", rejection.reason))) if kind else rejection


def most_bytes(limits: DirectoryLimits) -> int:
    """Upper limit of the bytes of a request."""
    return limits.request + OVERHEAD * 3 * limits.keys_at_once + 4 * OVERHEAD


def pack(message: Mapping[str, Any]) -> bytes:
    """A message as bytes."""
    return msgpack.packb(message)


def unpack(response: Response) -> dict[str, Any]:
    """The message of a reply."""
    return msgpack.unpackb(response.blocks[0].data, strict_map_key=False)


def _unpack_checked(request: Request, most: int) -> dict[str, Any]:
    """The message of a request, with few containers of at most `most` items each. Raises ValueError: malformed."""
    if len(request.blocks) != 1:
        raise ValueError(f"a message is one block (blocks: {len(request.blocks)})")
    count, sizes = _Containers(), {"max_array_len": most, "max_map_len": most}
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

    most = 4

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, container: Any) -> Any:
        self._seen += 1
        if self._seen > self.most:
            raise ValueError(f"too many lists and maps (most: {self.most})")
        return container


class DirectoryRequestReader:
    """The fields of a request; each is checked when it is read.

    Raises:
        ValueError: from every method: the field is missing or malformed.
    """

    def __init__(self, request: Request, limits: DirectoryLimits):
        self.sender = request.sender
        self._fields, self._limits = _unpack_checked(request, limits.keys_at_once), limits

    def whole(self, name: str) -> int:
        """A number from 0 up."""
        return check_whole(name, self._fields.get(name))

    def time(self, name: str) -> float:
        """A duration in seconds."""
        return check_length_of_time(name, self._fields.get(name))

    def prefix(self) -> Prefixes:
        """The prefixes to read or watch."""
        prefixes = self._fields.get("prefix")
        return self._limits.check_prefixes(tuple(prefixes) if isinstance(prefixes, list) else prefixes)

    def seconds(self) -> float:
        """The length of a lease in seconds."""
        return self._limits.check_seconds(self._fields.get("seconds"))

    def identity(self) -> DirectoryRequest:
        """The client and the number of the request."""
        return DirectoryRequest(self.whole("client"), self.whole("number"), self.whole("settled"))

    def transaction(self) -> tuple[dict[str, int], dict[str, bytes], list[str], int]:
        """The keys to expect, to put and to delete, and the lease."""
        expect, put, delete = (self._fields.get(name) for name in ("expect", "put", "delete"))
        if not isinstance(expect, dict) or not isinstance(put, dict) or not isinstance(delete, list):
            raise ValueError("a transaction expects and puts maps, and deletes a list")
        self._limits.check_transaction(expect, put, delete)
        return expect, put, delete, self.whole("lease")


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
    return [Change(key, entry, at) for at, each in packed for key, entry in unpack_entries(each).items()]
