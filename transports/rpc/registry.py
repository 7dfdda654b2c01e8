"""From a URL to an endpoint: the table of endpoints by URL scheme.

An endpoint's module is imported only when a URL of its scheme is opened. It defines
`async def open_url(parts: SplitResult, shape: Shape | None) -> Endpoint`, which checks what its URL may contain. The
options that make links slow are read here.
"""

from pkgutil import resolve_name
from urllib.parse import urlencode, urlsplit

from transports.emulation.options import split_shape
from transports.rpc.base import Endpoint

ENDPOINTS = {
    "tcp": "transports.rpc.tcp:open_url",
    "virtual": "transports.rpc.virtual.network:open_url",
}
"""The function that opens a URL, by the URL's scheme. A new kind of endpoint gets a line here."""


def endpoint_schemes() -> list[str]:
    """The schemes of all kinds of endpoints, sorted."""
    return sorted(ENDPOINTS)


async def open_endpoint(url: str) -> Endpoint:
    """Open this party's end at the address that the URL names, such as `tcp://127.0.0.1:0?delay=50ms`.

    Raises:
        ValueError: no such scheme (the known ones are named), or a URL that makes no sense.
        AuthenticationError: the address can be reached from other machines and there is no key.
        RendezvousError: there is no such address on this machine, or it is taken.
    """
    parts = urlsplit(url)
    if parts.scheme not in ENDPOINTS:
        known = ", ".join(f"{scheme}://" for scheme in endpoint_schemes())
        raise ValueError(f"unknown endpoint {url!r}; known: {known}")
    shape, others = split_shape(parts.query)
    return await resolve_name(ENDPOINTS[parts.scheme])(parts._replace(query=urlencode(others)), shape)
