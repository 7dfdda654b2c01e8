"""From a URL to a transport: the scheme names the plug-in, a file of this folder without a leading underscore.

The one rule: a plug-in is imported only when its scheme is asked for, so that a machine without MPI can still use TCP.
Each plug-in defines `async def open_url(parts: SplitResult) -> Transport`, which alone knows what its URL may say.
"""

from importlib import import_module
from pkgutil import iter_modules
from urllib.parse import urlsplit

from transports._contract import Transport


def schemes() -> list[str]:
    """The transports that are there, by name."""
    package = import_module(__package__)
    return sorted(module.name for module in iter_modules(package.__path__) if not module.name.startswith("_"))


async def open_transport(url: str) -> Transport:
    """Open this rank's end of the network that the URL names, such as `mpi://` or `tcp://10.0.0.1:29500`.

    Raises:
        ValueError: no such scheme (the known ones are named), or a URL that the transport cannot read.
        RendezvousError: the ranks did not find one another.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes():
        known = ", ".join(f"{scheme}://" for scheme in schemes())
        raise ValueError(f"unknown transport {url!r}; known: {known}")
    return await import_module(f"{__package__}.{parts.scheme}").open_url(parts)
