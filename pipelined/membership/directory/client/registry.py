"""Opens a directory by its URL: `etcd://` is an etcd cluster; an endpoint's address is an embedded directory.

The etcd client and its packages are imported only for `etcd://`.
"""

from pipelined.aio.clock import Clock
from pipelined.errors import UsageError
from pipelined.membership.addresses import without_password
from pipelined.membership.directory.api import Directory
from pipelined.membership.directory.client.embedded import EmbeddedDirectory
from pipelined.membership.directory.client.retry import PATIENCE_S
from transports.rpc import Endpoint, endpoint_schemes

ETCD = "etcd"
SIMULATED = "virtual"
"""The scheme of a directory in a simulation, which no user can name."""


def require_kind(url: str) -> None:
    """Raise UsageError unless the URL has the scheme of a directory; the message lists those of real networks."""
    schemes = ETCD, *endpoint_schemes()
    if url.partition("://")[0] not in (*schemes, SIMULATED):
        known_text = ", ".join(f"{name}://" for name in schemes)
        shown_url = without_password(url)
        remedy = "" if not url or "://" in url else f"write tcp://{shown_url}; "
        raise UsageError(f"unknown directory {shown_url!r}; {remedy}known: {known_text}")


def open_directory(url: str, endpoint: Endpoint, clock: Clock, patience: float = PATIENCE_S) -> Directory:
    """A client of the directory at a URL; no request is sent yet.

    Args:
        endpoint: sends the requests to an embedded directory; the caller closes it.
        patience: seconds without a reply after which calls raise `CutOff`.
    Raises:
        UsageError: an unknown kind of directory (the message lists the known ones), or a malformed URL.
    """
    require_kind(url)
    if url.startswith(f"{ETCD}://"):
        return _etcd(url, clock, patience)
    return EmbeddedDirectory(endpoint, url, clock, patience)


def _etcd(url: str, clock: Clock, patience: float) -> Directory:
    from pipelined.membership.directory.client.etcd.url import EtcdAddress

    address = EtcdAddress.parse(url)
    try:
        from pipelined.membership.directory.client.etcd.client import EtcdDirectory
    except ModuleNotFoundError as error:
        fact = f"etcd needs a package that is not here ({error.name})"
        raise UsageError(f"{fact}; pip install 'pipelined[etcd]'") from error
    return EtcdDirectory(address, clock, patience)
