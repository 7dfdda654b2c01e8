"""The address of a process's directory, and its own: part of the command line. No torch."""

from dataclasses import dataclass

from pipelined.errors import UsageError
from pipelined.membership.addresses import check_directory_url, without_password
from pipelined.membership.directory.client.registry import require_kind
from pipelined.membership.directory.limits import refuse_name


def listen_url(links: str) -> str:
    """Where a process of a system on this machine listens.

    Args:
        links: what makes its links slow, as --links has it; "": nothing.
    """
    return f"tcp://127.0.0.1:0?{link_options(links)}".rstrip("?")


def link_options(links: str) -> str:
    """The options of a URL that --links asks for.

    A comma separates two of them as & does: a shell ends a command at an & without quotes, and drops the rest.
    """
    return links.replace(",", "&").strip("&")


@dataclass(frozen=True)
class DirectoryAddress:
    """Where a process finds the directory, and where it listens."""

    coordinator: str = ""
    """Address of the directory: tcp://HOST:PORT of a coordinator."""
    directory: str = ""
    """Instead of a coordinator: etcd://HOST:PORT,HOST:PORT,…"""
    listen: str | None = None
    """Address at which this process listens; '?delay=50ms&rate=500mbit', in quotes, makes its links slow. Other
    machines need PIPELINED_KEY. Default: the local address from which this machine reaches the directory."""
    name: str = ""
    """Unique name of this process; the name of another running process is refused. Default: HOST-PID."""

    @property
    def url(self) -> str:
        return self.directory or self.coordinator

    def check(self) -> None:
        """Raises UsageError: no address, or two. The owner calls this, so that the error names its command."""
        if self.coordinator and self.directory:
            shown_url = without_password(self.directory)
            fact = f"there is one directory (--coordinator {self.coordinator}, --directory {shown_url})"
            raise UsageError(f"{fact}; leave one of the two out")
        if not (self.coordinator or self.directory):
            raise UsageError("say where the directory is: --coordinator tcp://HOST:PORT, or --directory etcd://…")
        require_kind(self.url)
        check_directory_url(self.coordinator, "--coordinator")
        refuse_name("--name", self.name)
