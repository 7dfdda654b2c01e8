"""From a URL to a transport: the scheme names the plug-in, a file of this folder without a leading underscore.

The one rule: a plug-in is imported only when its scheme is asked for, so that a machine without MPI can still use TCP.
Each plug-in defines `async def open_url(parts: SplitResult) -> Transport`, which alone knows what its URL may say, but
for the options that make its links slow (`transports._shape`): any transport takes those, and none sees them.
"""

from importlib import import_module
from pkgutil import iter_modules
from urllib.parse import SplitResult, urlencode, urlsplit

from transports._contract import Transport
from transports._shape import Shape, check_nothing_else, split_shape


def schemes() -> list[str]:
    """The transports that are there, by name."""
    package = import_module(__package__)
    modules = [module for module in iter_modules(package.__path__) if not module.ispkg]
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def read_url(url: str) -> tuple[SplitResult, Shape | None]:
    """Take a transport's URL apart: what the transport is told, and how slow its links are to be made, if at all.

    Raises:
        ValueError: no such scheme (the known ones are named), or links that cannot be.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes():
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
    end = await import_module(f"{__package__}.{parts.scheme}").open_url(parts)
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
    from transports._shaped import Shaped

    return Shaped(end, shape)
