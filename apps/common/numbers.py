"""Checks of numbers on a command line."""

import math

from pipelined.errors import UsageError


def refuse_below(least: float, flag: str, value: float) -> None:
    """Raises UsageError: the value of a flag is below `least`, or not finite."""
    if not least <= value < math.inf:
        finite = ", and finite" if value >= least else ""
        raise UsageError(f"{flag} must be at least {least}{finite} (it is {value})")
