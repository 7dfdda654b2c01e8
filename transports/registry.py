"""From a URL to a transport: the table of transports by URL scheme.

A transport is imported only when a URL of its scheme is opened, so a machine without MPI can still use TCP. Each
defines `async def open_url(parts: SplitResult) -> Transport`, which checks what its URL may contain. The options that
make links slow (`transports.emulation.options`) are taken out of the URL here; every transport has them.
"""

from pkgutil import resolve_name
from urllib.parse import SplitResult, urlencode, urlsplit

from transports.base import Transport
from transports.emulation.options import Shape, check_nothing_else, split_shape

TRANSPORTS = {
    "local": "transports.local:open_url",
    "mpi": "transports.mpi.loading:open_url",
    "tcp": "transports.tcp.transport:open_url",
}
"""The function that opens a URL, by the URL's scheme. A new transport gets a line here."""


def schemes() -> list[str]:
    """The schemes of all transports, sorted."""
    return sorted(TRANSPORTS)


def read_url(url: str) -> tuple[SplitResult, Shape | None]:
    """Take a transport's URL apart: what the transport is told, and how slow its links are to be made, if at all.

    Raises:
        ValueError: no such scheme (the known ones are named), or links that cannot be.
    """
    parts = urlsplit(url)
    if parts.scheme not in TRANSPORTS:
        known = ", ".join(f"{scheme}://" for scheme in schemes())
        raise ValueError(f"unknown transport {url!r}; known: {known}")
    shape, others = split_shape(parts.query)
    return (parts if shape is None else parts._replace(query=urlencode(others))), shape


async def open_transport(url: str) -> Transport:
    """Open this rank's end of the network that the URL names, such as `mpi://` or `tcp://10.0.0.1:29500?delay=50ms`.

    Raises:
        ValueError: no such scheme (the known ones are named), or a URL that the transport cannot read.
        RendezvousError: the ranks did not find one another.
    """
    parts, shape = read_url(url)
    end = await resolve_name(TRANSPORTS[parts.scheme])(parts)
    return end if shape is None else _slowed(end, shape)


def open_local(url: str, world_size: int) -> list[Transport]:
    """All ranks of a `local://` world, in order, to be used on the running loop.

    Raises:
        ValueError: a URL that `local` cannot read.
    """
    from transports.local import world

    parts, shape = read_url(url)
    check_nothing_else(parts)
    return [end if shape is None else _slowed(end, shape) for end in world(world_size)]


def _slowed(end: Transport, shape: Shape) -> Transport:
    from transports.emulation.transport import SlowTransport

    return SlowTransport(end, shape)
