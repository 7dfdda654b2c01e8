"""The reasons by which an endpoint counts invalid input and rejections."""

import re
from collections import Counter

REASONS = 64
"""Maximum number of reasons with their own count: a handler or an error may pass on a reason from received text."""
_FACTS = re.compile(r"[(:;'\"\[]|, got")


def reason_of(error: Exception) -> str:
    """The text of an error before its facts: "too many blocks (got: 65, limit: 64)" is counted as "too many blocks".

    So received text, which belongs into the facts, makes no reasons of its own in `Endpoint.invalid_input`.
    """
    return _FACTS.split(str(error), maxsplit=1)[0].strip() or type(error).__name__


def count_reason(counts: Counter[str], reason: str) -> None:
    """Count a reason; a new one beyond `REASONS` is counted as "others"."""
    counts[reason if reason in counts or len(counts) < REASONS else "others"] += 1
