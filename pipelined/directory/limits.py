"""How much a directory holds and takes. The rule: what is beyond a limit is named with both numbers and never stored.

Knows sizes alone; it must not know what is kept where, nor who asks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DirectoryLimits:
    """The most of everything; sizes in bytes.

    Args:
        key: of a key or prefix, in UTF-8.
        value: of one value.
        keys_at_once: that a transaction expects, or that it puts and deletes; etcd takes 128, some of them our own.
        request: of all keys and values of a transaction.
        entries: keys that exist.
        total: of all keys and values that exist.
        leases: that live at a time.
        longest_lease: in seconds.
        clients: whose requests are remembered; beyond them those longest silent are forgotten, those without a lease
            first. With twice as many as leases no client that holds one is ever forgotten.
        unsettled: requests of one client whose answers it has not said to have heard.
        history: of changes kept for those who watch.
        longest_wait: in seconds, that an asker may be kept waiting for a change.
        prefixes: that one read or watch names.
    """

    key: int = 512
    value: int = 256 << 10
    keys_at_once: int = 100
    request: int = 1 << 20
    entries: int = 100_000
    total: int = 64 << 20
    leases: int = 20_000
    longest_lease: float = 3600.0
    clients: int = 40_000
    unsettled: int = 1024
    history: int = 16 << 20
    longest_wait: float = 3600.0
    prefixes: int = 16

    def check_prefixes(self, prefixes: object) -> None:
        """Raises ValueError: no text or tuple of such, one is too long, or there are too many or none."""
        several = (prefixes,) if isinstance(prefixes, str) else prefixes
        if not isinstance(several, tuple):
            raise ValueError(f"prefixes are text, or a tuple of such (type: {type(prefixes).__name__})")
        if not 0 < len(several) <= self.prefixes:
            raise ValueError(f"too few or too many prefixes (prefixes: {len(several)}, most: {self.prefixes})")
        for prefix in several:
            self.check_prefix(prefix)

    def check_prefix(self, prefix: object) -> None:
        """Raises ValueError: no text, or too long."""
        if not isinstance(prefix, str):
            raise ValueError(f"a key is text (type: {type(prefix).__name__})")
        size = len(prefix.encode("utf-8"))  # UnicodeEncodeError, for lone surrogates, is a ValueError
        if size > self.key:
            raise ValueError(f"the key is too long (bytes: {size}, most: {self.key})")

    def check_key(self, key: object) -> None:
        """Raises ValueError: as `check_prefix`, or empty."""
        self.check_prefix(key)
        if not key:
            raise ValueError("a key has at least one character (characters: 0)")

    def check_seconds(self, seconds: object) -> None:
        """Raises ValueError: no such length of a lease."""
        if type(seconds) not in (int, float) or not 0 < seconds <= self.longest_lease:
            raise ValueError(
                f"no such lease (seconds: {seconds!r}); it lives more than 0, at most {self.longest_lease}"
            )

    def check_transaction(self, expect: Mapping[str, int], put: Mapping[str, bytes], delete: Sequence[str]) -> None:
        """Raises ValueError: something in it is of the wrong kind or too large, or a key is put and deleted at once."""
        most = max(len(expect), len(put) + len(delete))
        if most > self.keys_at_once:
            raise ValueError(f"too many keys in a transaction (keys: {most}, most: {self.keys_at_once}); make several")
        for key in (*expect, *put, *delete):
            self.check_key(key)
        for key, revision in expect.items():
            check_whole(f"the revision expected of {key!r}", revision)
        for key, value in put.items():
            self._check_value(key, value)
        if len({*put, *delete}) < len(put) + len(delete):
            raise ValueError("a key is put or deleted once in a transaction; leave out the other")
        size = sum(len(key.encode()) for key in (*expect, *put, *delete)) + sum(map(len, put.values()))
        if size > self.request:
            raise ValueError(f"the transaction is too large (bytes: {size}, most: {self.request}); make several")

    def _check_value(self, key: str, value: object) -> None:
        if not isinstance(value, bytes):
            raise ValueError(f"the value of {key!r} is no bytes (type: {type(value).__name__})")
        if len(value) > self.value:
            raise ValueError(f"the value of {key!r} is too large (bytes: {len(value)}, most: {self.value})")


def check_whole(name: str, number: object) -> None:
    """Raises ValueError: not a whole number from 0 to 2^63 - 1."""
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f"{name} is no whole number from 0 to 2^63 - 1 ({number!r:.40})")


def check_length_of_time(name: str, seconds: object) -> None:
    """Raises ValueError: not a finite number of seconds from 0 up."""
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is no length of time ({seconds!r:.40})")
