"""A rank's end and its owner, which aborts it when a collective fails: what makes unequal calls end on all ranks."""

from collectives import Mismatch
from transports import TransportError


async def owned(end, call):
    """Run the call as a runtime does: if it fails, abort this rank's end, so that every other rank ends too."""
    try:
        await call
    except (TransportError, Mismatch) as error:
        await end.abort(str(error))
        raise
