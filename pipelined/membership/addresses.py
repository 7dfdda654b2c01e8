"""The addresses of a system: of its directory, as a user gives it, and of the processes that listen. No torch."""

import re
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from pipelined.errors import UsageError

MAX_PORT = 65535
DISCARD_PORT = 9
"""The port of a datagram socket that sends nothing (RFC 863)."""


def check_directory_url(url: str, argument: str) -> None:
    """Refuse a tcp:// address of a directory without a host and a port from 1 to 65535; other schemes pass.

    Args:
        argument: the setting or flag that gives the address, for the message.
    Raises:
        UsageError: it is no such address.
    """
    if url.startswith("tcp:"):
        match = re.fullmatch(r"tcp://(?:[^]/?@:[]+|\[[^]/?@]+\]):([0-9]{1,9})", url)
        if match is None:
            raise UsageError(f"{argument} {without_password(url)} is no address; write tcp://HOST:PORT")
        if not 1 <= int(match[1]) <= MAX_PORT:
            fact = f"{argument} {url} has no port from 1 to {MAX_PORT}"
            raise UsageError(f"{fact}; give the address that the directory printed")


def described(url: str) -> str:
    """The directory, for messages."""
    return f"the directory at {without_password(url)}"


def without_password(url: str) -> str:
    """The URL of a directory without its user and password; a slash in these, where %2F belongs, ends neither."""
    return re.sub(r"^([^/@]*//)?.*@", r"\1", url)


def listen_url(url: str, listen: str | None) -> str:
    """The URL at which a process listens.

    Args:
        url: of the directory.
        listen: None: the local address from which this machine reaches the directory.
    Raises:
        UsageError: other members could not connect: `listen` is a loopback address, and the directory is on another
            machine.
    """
    if listen is not None and not _is_loopback(listen):
        return listen
    own_address, host_address = _route(url)
    own_url = f"tcp://[{own_address}]:0" if ":" in own_address else f"tcp://{own_address}:0"
    if listen is None:
        return own_url
    if own_address != host_address and not _is_loopback(own_url):
        fact = f"members on other machines cannot connect to --listen {listen} ({described(url)})"
        raise UsageError(f"{fact}; leave --listen out, or give an address of this machine such as {own_address}")
    return listen


def _route(url: str) -> tuple[str, str]:
    """The local address from which this machine reaches the host of a directory's URL, and the host's address.

    The first of several hosts is taken; a URL without a host of a network is reached by loopback.

    Raises:
        UsageError: the URL is malformed, the host's name has no address, or this machine has no route to it.
    Cost: one look-up of the name; no packet is sent.
    """
    try:
        scheme, _, location = url.partition("://")
        members = re.split("[/?#]", location, maxsplit=1)[0].rpartition("@")[2]
        first_host = urlsplit(f"//{members.partition(',')[0]}").hostname
        host = (first_host if scheme in ("tcp", "etcd") else None) or "127.0.0.1"
        kind, _, _, _, address = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0], str(address[0])
    except (OSError, ValueError) as error:
        raise UsageError(f"this machine cannot reach {described(url)} ({error}); correct its address") from error


def _is_loopback(url: str) -> bool:
    """Whether only processes of the same machine can reach the host of this URL."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
