"""From a URL to an endpoint: the scheme names the plug-in, a file of this folder without a leading underscore.

The one rule: as for transports, a plug-in is imported only when its scheme is asked for, and defines `open_url`; what
makes links slow is read here, the rest of the URL there.
"""

from importlib import import_module
from pkgutil import iter_modules
from urllib.parse import urlencode, urlsplit

from transports._shape import split_shape
from transports.endpoints._contract import Endpoint


def endpoint_schemes() -> list[str]:
    """The kinds of endpoints that are there, by name."""
    package = import_module(__package__)
    return sorted(module.name for module in iter_modules(package.__path__) if not module.name.startswith("_"))


async def open_endpoint(url: str) -> Endpoint:
    """Open this party's end at the address that the URL names, such as `tcp://127.0.0.1:0?delay=50ms`.

    Raises:
        ValueError: no such scheme (the known ones are named), or a URL that makes no sense.
        AuthenticationError: the address can be reached from other machines and there is no key.
        RendezvousError: there is no such address on this machine, or it is taken.
    """
    parts = urlsplit(url)
    if parts.scheme not in endpoint_schemes():
        known = ", ".join(f"{scheme}://" for scheme in endpoint_schemes())
        raise ValueError(f"unknown endpoint {url!r}; known: {known}")
    shape, others = split_shape(parts.query)
    plug_in = import_module(f"{__package__}.{parts.scheme}")
    return await plug_in.open_url(parts._replace(query=urlencode(others)), shape)
