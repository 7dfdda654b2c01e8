"""The table of transports by URL scheme, and opening a transport by its URL.

A transport is imported only when a URL of its scheme is opened, so a machine without MPI can still use TCP. Each
transport defines `async def open_url(url: ParsedUrl) -> Transport`, which takes its parts of the URL. The options that
make links slow (`transports.emulation.options`) work with every transport and are applied here.
"""

import math
from pkgutil import resolve_name

from transports.base import Transport
from transports.emulation.options import LinkProfile
from transports.urls import ParsedUrl

TRANSPORTS = {
    "local": "transports.local:open_url",
    "mpi": "transports.mpi.opening:open_url",
    "tcp": "transports.tcp.transport:open_url",
}
"""The function that opens a URL, by the URL's scheme. A new transport gets a line here."""


def schemes() -> list[str]:
    """The schemes of all transports, sorted."""
    return sorted(TRANSPORTS)


def read_url(url: str) -> ParsedUrl:
    """Parse a transport's URL.

    Raises:
        ValueError: no such scheme (the error lists the known ones), or invalid options of slow links.
    """
    parsed = ParsedUrl("transport", url, TRANSPORTS)
    if parsed.links is not None and parsed.links.line < math.inf:
        raise ValueError(f"line= is only for endpoints (url: {url!r}); limit a rank's links with rate=")
    return parsed


async def open_transport(url: str) -> Transport:
    """Open this rank's end of the network that the URL names, such as `mpi://` or `tcp://10.0.0.1:29500?delay=50ms`.

    Raises:
        ValueError: no such scheme (the error lists the known ones), or a URL that the transport cannot parse.
        RendezvousError: the ranks could not connect.
    """
    parsed = read_url(url)
    transport = await resolve_name(TRANSPORTS[parsed.scheme])(parsed)
    return _slowed(transport, parsed.links)


def open_local(url: str, world_size: int) -> list[Transport]:
    """All ranks of a `local://` world, in order, for the running loop.

    Raises:
        ValueError: a URL of another scheme, or one that `local` cannot parse.
    """
    from transports.local import world

    parsed = read_url(url)
    if parsed.scheme != "local":
        raise ValueError(f"ranks of one process need local:// (got: {url!r}); open each rank by `open_transport`")
    parsed.check_all_taken()
    return [_slowed(rank, parsed.links) for rank in world(world_size)]


def _slowed(transport: Transport, profile: LinkProfile | None) -> Transport:
    if profile is None:
        return transport
    from transports.emulation.transport import SlowTransport

    return SlowTransport(transport, profile)
