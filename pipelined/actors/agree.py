"""Agreement among all ranks of a job: on the outcome of work that may fail, and on equal settings."""

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from collectives.objects import broadcast_object, first_value
from pipelined.errors import AgreedError, UsageError
from transports import Transport

T = TypeVar("T")


async def agree(transport: Transport, what: str, work: Awaitable[T]) -> T:
    """Do work that may fail with a user error on every rank, and agree on the outcome.

    Args:
        what: a name for this exchange, the same on every rank.
        work: may raise UsageError or OSError on any rank.
    Raises:
        AgreedError: on every rank, the error of the lowest rank that failed, with its number unless it is rank 0.
    Cost: 2 ceil(log2 n) messages one after another.
    """
    result, error = None, None
    try:
        result = await work
    except (UsageError, OSError) as caught:
        error = str(caught)
    failure = await first_value(transport, what, error)
    if failure is not None:
        rank, fact = failure
        raise AgreedError(f"rank {rank}: {fact}" if rank and not fact.startswith(f"rank {rank} (") else fact)
    return result  # type: ignore[return-value]


async def require_equal(transport: Transport, what: str, settings: Mapping[str, str], remedy: str) -> None:
    """Refuse settings that differ between ranks; every rank calls this.

    Args:
        settings: by name, in words.
    Raises:
        AgreedError: on every rank, naming a rank, and what it and rank 0 have.
    Cost: 3 ceil(log2 n) messages one after another.
    """
    expected = await broadcast_object(transport, what, dict(settings))

    async def compare() -> None:
        refuse_other(what, settings, expected, remedy)

    await agree(transport, f"equal {what}", compare())


def refuse_other(what: str, settings: Mapping[str, Any], expected: Mapping[str, Any], remedy: str) -> None:
    """Raise UsageError, with both values of each, where settings of this rank are not those expected, of rank 0."""
    names = [name for name in {**settings, **expected} if settings.get(name) != expected.get(name)]
    if names:
        facts = "; ".join(f"{name}: {settings.get(name)} here, {expected.get(name)} on rank 0" for name in names)
        raise UsageError(f"other {what} than those of rank 0 ({facts}); {remedy}")
