"""The messages of etcd's JSON gateway: keys and values in base64, numbers as text. No I/O.

Source: etcd v3.4, api reference.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from pipelined.membership.directory.api import Change, Entry

EtcdMessage = dict[str, Any]


class Keys:
    """The keys of one directory among those of a cluster.

    Args:
        namespace: prefix of all of them.
    """

    def __init__(self, namespace: str):
        self._namespace = namespace.encode()

    def compare(self, key: str, revision: int) -> EtcdMessage:
        """Expect the revision of a key's last change, inside a transaction; 0: the key must not exist."""
        return {"key": self._full(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}

    def get(self, key: str) -> EtcdMessage:
        """Read a key, inside a transaction."""
        return {"request_range": {"key": self._full(key)}}

    def put(self, key: str, value: bytes, lease: int) -> EtcdMessage:
        """Put a key, inside a transaction."""
        return {"request_put": {"key": self._full(key), "value": text(value), "lease": str(lease)}}

    def delete(self, key: str) -> EtcdMessage:
        """Delete a key, inside a transaction."""
        return {"request_delete_range": {"key": self._full(key)}}

    def prefix_range(self, prefix: str) -> EtcdMessage:
        """The range of all keys that begin with a prefix."""
        start = self._namespace + prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])  # UTF-8 has no byte 255
        return {"key": text(start), "range_end": text(end)}

    def entries(self, reply: Mapping[str, Any]) -> dict[str, Entry]:
        return {self._key(pair): entry_of(pair) for pair in reply.get("kvs", ())}

    def changes(self, reply: Mapping[str, Any]) -> list[Change]:
        """The changes in a reply, in order. etcd splits a revision over two replies only on request."""
        return [self._change(event) for event in reply.get("events", ())]

    def _change(self, event: Mapping[str, Any]) -> Change:
        pair = event["kv"]
        entry = None if event.get("type") == "DELETE" else entry_of(pair)
        return Change(self._key(pair), entry, int(pair["mod_revision"]))

    def _key(self, pair: Mapping[str, Any]) -> str:
        return b64decode(pair["key"])[len(self._namespace) :].decode()

    def _full(self, key: str) -> str:
        return text(self._namespace + key.encode())


def entry_of(pair: Mapping[str, Any]) -> Entry:
    """The entry of a key; etcd omits fields that are empty or 0."""
    return Entry(b64decode(pair.get("value", "")), int(pair["mod_revision"]), int(pair.get("lease", 0)))


def text(data: bytes) -> str:
    """Bytes in base64, for JSON."""
    return b64encode(data).decode()


def revision_of(reply: Mapping[str, Any]) -> int:
    return int(reply["header"]["revision"])
