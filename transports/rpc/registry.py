"""The table of endpoints by URL scheme, and opening an endpoint by its URL. No URL opens one of a virtual network.

An endpoint's module is imported only when a URL of its scheme is opened. It defines
`async def open_url(url: ParsedUrl) -> Endpoint`, which takes its parts of the URL and slows its links.
"""

from pkgutil import resolve_name

from transports.rpc.base import Endpoint
from transports.urls import ParsedUrl

ENDPOINTS = {
    "tcp": "transports.rpc.tcp.endpoint:open_url",
}
"""The function that opens a URL, by the URL's scheme. A new kind of endpoint gets a line here."""


def endpoint_schemes() -> list[str]:
    """The schemes of all kinds of endpoints, sorted."""
    return sorted(ENDPOINTS)


async def open_endpoint(url: str) -> Endpoint:
    """Open this party's end at the address that the URL names, such as `tcp://127.0.0.1:0?delay=50ms`.

    Raises:
        ValueError: no such scheme (the error lists the known ones), or a malformed URL.
        AuthenticationError: the address can be reached from other machines, and no key is set.
        RendezvousError: this machine has no such address, or it is in use.
    """
    parsed = ParsedUrl("endpoint", url, ENDPOINTS)
    if parsed.links is not None and parsed.links.ranks_per_node:
        fact = f"an endpoint has no rank, so no node (node: {parsed.links.ranks_per_node})"
        raise ValueError(f"{fact}; leave out node=, far-delay=, far-rate=")
    return await resolve_name(ENDPOINTS[parsed.scheme])(parsed)
