"""The reasons of an endpoint's own rejections, and the counts of invalid input and rejections by reason."""

import re
from collections import Counter

BUSY, TOO_LARGE, FAILED, UNKNOWN_TOPIC = "busy", "too large", "failed", "unknown topic"
"""Reasons of an endpoint itself: no room now, too many bytes, an error of the handler, and no such topic."""
REASONS = 64
"""Maximum number of reasons with their own count: a handler or an error may pass on a reason from received text."""
_FACTS = re.compile(r"[(:;'\"\[]|, got")


def reason_of(error: Exception) -> str:
    """The text of an error before its facts: "too many blocks (got: 65, limit: 64)" is counted as "too many blocks".

    Received text is among the facts, so it adds no reason to `Endpoint.invalid_input`.
    """
    return _FACTS.split(str(error), maxsplit=1)[0].strip() or type(error).__name__


def count_reason(counts: Counter[str], reason: str) -> None:
    """Count a reason; a new one beyond `REASONS` is counted as "others"."""
    counts[reason if reason in counts or len(counts) < REASONS else "others"] += 1
