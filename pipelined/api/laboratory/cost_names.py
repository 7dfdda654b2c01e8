"""The names of costs, sizes and links in the laboratory's arguments and in the commands' flags; nothing is imported."""

from collections.abc import Iterable, Mapping, Sequence

from pipelined.errors import UsageError

COSTS = ("forward", "backward", "backward-input", "backward-weight", "update")
"""Seconds of a microbatch in a stage, and of a stage's update."""
SIZES = ("message", "activation", "pending", "boundary", "parameters")
"""Bytes of a microbatch in a stage, and of the stage's parameters."""
LINK = ("alpha", "beta", "gamma")
"""Seconds of a message, of a byte in it, and of a byte that is added up."""


def require_mapping(what: str, argument: object, example: str = "{'forward': 1.5}") -> None:
    """Refuse what has no names and numbers, as the argument `what`."""
    if not isinstance(argument, Mapping):
        raise UsageError(f"`{what}=` is {argument!r}, without names; give numbers by name, such as {example}")


def require_names(what: str, names: Iterable[str], known_names: Sequence[str], example: str = "1.5") -> None:
    """Refuse a name that is not among the known.

    Args:
        what: the argument, for the message.
        example: a value of the first known name.
    """
    for name in names:
        if name not in known_names:
            remedy = "; a message's seconds are alpha of `links=`" if name == "p2p" else ""
            choice = f"known: {', '.join(known_names)}, as in {known_names[0]}={example}"
            raise UsageError(f"`{what}=` knows no {name!r}; {choice}{remedy}")
