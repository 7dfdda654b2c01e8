"""Where a process finds its swarm, and where it listens: a dataclass that makes part of the command line. No torch."""

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from pipelined.errors import UsageError

LOOPBACK = "tcp://127.0.0.1:0"
DISCARD_PORT = 9
"""The port of a datagram socket that sends nothing (RFC 863)."""


@dataclass(frozen=True)
class SwarmAddress:
    """Where a process finds its swarm, and where it listens."""

    coordinator: str = ""
    """Address of the directory: tcp://HOST:PORT of a coordinator."""
    directory: str = ""
    """Instead of a coordinator: etcd://HOST:PORT,HOST:PORT,…"""
    listen: str | None = None
    """Address at which this process listens; ?delay=50ms&rate=500mbit makes its links slow. Other machines need
    PIPELINED_KEY. Open: the local address from which this machine reaches the directory."""
    name: str = ""
    """Unique name of this process; the name of another running process is refused. Default: HOST-PID."""

    @property
    def url(self) -> str:
        """The URL of the directory."""
        return self.directory or self.coordinator

    @property
    def listen_url(self) -> str:
        """The URL at which this process listens.

        Raises:
            UsageError: other members could not connect: --listen is a loopback address, and the directory is on
                another machine.
        """
        if self.listen is not None and not _is_loopback(urlsplit(self.listen).hostname):
            return self.listen
        own, theirs = _route(self.url)
        if self.listen is None:
            return f"tcp://[{own}]:0" if ":" in own else f"tcp://{own}:0"
        if own != theirs and not _is_loopback(own):
            fact = f"members on other machines cannot connect to --listen {self.listen} ({self.description})"
            raise UsageError(f"{fact}; leave --listen out, or give an address of this machine such as {own}")
        return self.listen

    @property
    def description(self) -> str:
        """The directory, for messages, without a password."""
        return "the directory at " + re.sub("//[^/]*@", "//", self.url)

    def check(self) -> None:
        """Raises UsageError: no address, or two. The owner calls this, so that the error names its command."""
        if self.coordinator and self.directory:
            fact = f"a swarm has one directory (--coordinator {self.coordinator}, --directory {self.directory})"
            raise UsageError(f"{fact}; leave one of the two out")
        if not (self.coordinator or self.directory):
            raise UsageError("say where the swarm is: --coordinator tcp://HOST:PORT, or --directory etcd://…")
        if self.coordinator.startswith("tcp:") and not re.fullmatch(r"tcp://[^/?@]+:[0-9]+", self.coordinator):
            raise UsageError(f"--coordinator {self.coordinator} is no address; write tcp://HOST:PORT")


def _route(url: str) -> tuple[str, str]:
    """The local address from which this machine reaches the host of a directory's URL, and the host's address.

    Of several hosts the first is taken; a URL without a host of a network is reached by loopback.

    Raises:
        UsageError: the host's name has no address, or this machine has no route to it.
    Cost: one look-up of the name; no packet is sent.
    """
    parts = urlsplit(url)
    first = urlsplit(f"//{parts.netloc.rpartition('@')[2].partition(',')[0]}").hostname
    host = (first if parts.scheme in ("tcp", "etcd") else None) or "127.0.0.1"
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0], str(address[0])
    except OSError as error:
        raise UsageError(f"this machine cannot reach {host} ({error}); correct the address of the swarm") from error


def _is_loopback(host: str | None) -> bool:
    """Whether only processes of the same machine can reach this address."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
