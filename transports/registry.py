"""The table of transports by URL scheme, and opening a transport by its URL.

A transport is imported only when a URL of its scheme is opened, so a machine without MPI can still use TCP. Each
transport defines `async def open_url(parts: SplitResult) -> Transport`, which checks the rest of the URL. The options
that make links slow (`transports.emulation.options`) work with every transport and are removed from the URL here.
"""

from pkgutil import resolve_name
from urllib.parse import SplitResult

from transports.base import Transport
from transports.emulation.options import LinkShape
from transports.urls import check_nothing_else, split_url

TRANSPORTS = {
    "local": "transports.local:open_url",
    "mpi": "transports.mpi.loading:open_url",
    "tcp": "transports.tcp.transport:open_url",
}
"""The function that opens a URL, by the URL's scheme. A new transport gets a line here."""


def schemes() -> list[str]:
    """The schemes of all transports, sorted."""
    return sorted(TRANSPORTS)


def read_url(url: str) -> tuple[SplitResult, LinkShape | None]:
    """Split a transport's URL into the parts for the transport, and the shape of its slow links (None: not slowed).

    Raises:
        ValueError: no such scheme (the error lists the known ones), or invalid options of slow links.
    """
    return split_url("transport", url, TRANSPORTS)


async def open_transport(url: str) -> Transport:
    """Open this rank's end of the network that the URL names, such as `mpi://` or `tcp://10.0.0.1:29500?delay=50ms`.

    Raises:
        ValueError: no such scheme (the error lists the known ones), or a URL that the transport cannot parse.
        RendezvousError: the ranks could not connect.
    """
    parts, shape = read_url(url)
    transport = await resolve_name(TRANSPORTS[parts.scheme])(parts)
    return transport if shape is None else _slowed(transport, shape)


def open_local(url: str, world_size: int) -> list[Transport]:
    """All ranks of a `local://` world, in order, for the running loop.

    Raises:
        ValueError: a URL of another scheme, or one that `local` cannot parse.
    """
    from transports.local import world

    parts, shape = read_url(url)
    if parts.scheme != "local":
        raise ValueError(f"ranks of one process need local:// (got: {url!r}); open each rank by `open_transport`")
    check_nothing_else(parts)
    return [rank if shape is None else _slowed(rank, shape) for rank in world(world_size)]


def _slowed(transport: Transport, shape: LinkShape) -> Transport:
    from transports.emulation.transport import SlowTransport

    return SlowTransport(transport, shape)
