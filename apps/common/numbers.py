"""Numbers that a command line may not give."""

import math

from pipelined.errors import UsageError


def refuse_below(least: float, flag: str, value: float) -> None:
    """Raises UsageError: a flag that counts or measures something says too little, or no finite number."""
    if not least <= value < math.inf:
        finite = ", and finite" if value >= least else ""
        raise UsageError(f"{flag} must be at least {least}{finite} (it is {value})")
