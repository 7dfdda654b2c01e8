"""Why members of a sum refuse: the reasons by which a leader decides, and the members that a refusal names."""

from transports.rpc import Refusal

NOT_FINITE = "not finite"
"""A part that came, or the total, is not finite."""
PART_NOT_FINITE = "part not finite"
"""What this member itself would add is not finite; the total of the others may be."""
BEYOND_CODEC = "beyond codec"
"""Sums are finite, and the codec cannot carry them."""
PARTIES = ("by", "member")
"""Facts of a refusal: the two members between which a round failed."""


def parties_of(error: BaseException) -> dict[str, str]:
    """The two members between which a round failed, as a refusal names them; empty: it names none."""
    facts = error.facts if isinstance(error, Refusal) else {}
    named = {name: facts[name] for name in PARTIES if type(facts.get(name)) is str}
    return named if len(named) == len(PARTIES) else {}
