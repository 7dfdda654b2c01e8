"""The limits of a directory, and the checks of keys, values and numbers against them.

A refusal names the number and the limit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from pipelined.errors import UsageError, refuse_non_positive
from pipelined.membership.directory.api import Prefixes

LONGEST_NAME = 256
"""Bytes of a process's name: its keys are longer, and logs and status show it."""
SHORTEST_LEASE_S = 0.5
"""A lease is renewed after each third of it; a thread that computes may delay an event loop by a tenth of a second."""


@dataclass(frozen=True, slots=True)
class DirectoryLimits:
    """The upper limits of a directory; sizes in bytes.

    Args:
        key: size of a key or prefix, in UTF-8.
        value: size of one value.
        keys_at_once: keys that a transaction expects, or that it puts and deletes. etcd takes 128, and the client's
            own marks need some of them.
        request: size of all keys and values of a transaction.
        entries: keys that exist.
        total: size of all keys and values that exist.
        leases: leases that exist at a time.
        longest_lease: in seconds.
        clients: clients of which requests are remembered. Beyond this number the longest silent clients are
            forgotten, those without a lease first. With twice as many clients as leases a client with a lease is
            never forgotten.
        unsettled: requests of one client with unacknowledged replies.
        history: size of the changes kept for watchers.
        longest_wait: seconds for which a request may wait for a change.
        prefixes: prefixes in one read or watch.
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

    def check_prefixes(self, prefixes: object) -> Prefixes:
        """The prefixes. Raises ValueError: not text or a tuple of texts, one too long, or too many or zero."""
        prefix_tuple = (prefixes,) if isinstance(prefixes, str) else prefixes
        if not isinstance(prefix_tuple, tuple):
            raise ValueError(f"prefixes are text, or a tuple of such (type: {type(prefixes).__name__})")
        if not 0 < len(prefix_tuple) <= self.prefixes:
            raise ValueError(f"too few or too many prefixes (prefixes: {len(prefix_tuple)}, most: {self.prefixes})")
        for prefix in prefix_tuple:
            self.check_prefix(prefix)
        return prefixes if isinstance(prefixes, str) else prefix_tuple

    def check_prefix(self, prefix: object) -> None:
        """Raises ValueError: not text, or too long."""
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

    def check_seconds(self, seconds: object) -> float:
        """The length of a lease. Raises ValueError: not a number, or not above 0 and at most `longest_lease`."""
        if not _is_number(seconds) or not 0 < seconds <= self.longest_lease:
            raise ValueError(f"lease out of range (seconds: {seconds!r}, more than 0, at most: {self.longest_lease})")
        return float(seconds)

    def check_transaction(self, expect: Mapping[str, int], put: Mapping[str, bytes], delete: Sequence[str]) -> None:
        """Raises ValueError: a part has the wrong type or is too large, or a key is both put and deleted."""
        key_count = max(len(expect), len(put) + len(delete))
        if key_count > self.keys_at_once:
            raise ValueError(
                f"too many keys in a transaction (keys: {key_count}, most: {self.keys_at_once}); make several"
            )
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
            raise ValueError(f"the transaction is too large (bytes: {size:,}, most: {self.request:,}); make several")

    def _check_value(self, key: str, value: object) -> None:
        if not isinstance(value, bytes):
            raise ValueError(f"the value of {key!r} is no bytes (type: {type(value).__name__})")
        if len(value) > self.value:
            raise ValueError(f"the value of {key!r} is too large (bytes: {len(value):,}, most: {self.value:,})")


def check_whole(name: str, number: object) -> int:
    """The number. Raises ValueError: not a whole number from 0 to 2^63 - 1."""
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f"{name} is no whole number from 0 to 2^63 - 1 ({number!r:.40})")
    return number


def check_length_of_time(name: str, seconds: object) -> float:
    """The duration. Raises ValueError: not a finite number of seconds from 0 up."""
    if not _is_number(seconds) or not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is no length of time ({seconds!r:.40})")
    return seconds


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) in (int, float)  # not a bool


def refuse_lease_length(name: str, seconds: float) -> None:
    """Raises UsageError: no directory grants a lease of this length, or no process keeps it.

    Args:
        name: of the setting or flag.
    """
    refuse_non_positive(name, seconds)
    if seconds < SHORTEST_LEASE_S:
        fact = f"{name} must be at least {SHORTEST_LEASE_S:g} s (it is {seconds:g})"
        reason = "a process that computes renews a shorter one too late, and loses it again and again"
        raise UsageError(f"{fact}: {reason}; raise it, as to 10")
    if seconds > (longest := DirectoryLimits().longest_lease):
        raise UsageError(f"{name} must be at most {longest:g} s (it is {seconds:g}); lower it")


def refuse_name(setting: str, name: str) -> None:
    """Raises UsageError: no directory takes this name of a process, or it splits the lines of a log."""
    if not name.isprintable():
        raise UsageError(f"{setting} has a character that cannot be printed ({name!r:.80}); leave it out")
    if (size := len(name.encode())) > LONGEST_NAME:
        raise UsageError(f"{setting} must be at most {LONGEST_NAME} bytes (it is {size}); shorten it")
