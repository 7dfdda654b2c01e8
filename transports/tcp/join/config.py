"""The configuration of one rank over TCP, read from the URL and the launcher's variables.

A wrong value is refused here, before a socket is opened; the error gives its name and the remedy.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from transports.errors import RendezvousError
from transports.stream.shared_key import read_shared_key
from transports.urls import ParsedUrl

WAIT_S = 60.0
LAUNCH = "start with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself"


def this_machine() -> str:
    """A name of this machine that all its processes get and no other machine has: the boot id, else the host name."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """This rank, the meeting point of the ranks, and what they must prove to one another.

    Args:
        host, port: the address at which rank 0 or the launcher's store listens.
        run: the name of this run and attempt; ranks of another run are refused.
        shared_key: empty: none, and then only loopback is allowed.
        wait: seconds to wait for all ranks.
        one_machine: whether all ranks run on this machine, according to the launcher.
        store: whether `host:port` is the launcher's store, in which rank 0 must publish its own address.
        machine: the name of this rank's machine; ranks with the same name are on one machine.
        unix: whether ranks of one machine use Unix sockets, which are faster.
    """

    rank: int
    world_size: int
    host: str
    port: int
    run: str = "none/0"
    shared_key: bytes = field(default=b"", repr=False)
    wait: float = WAIT_S
    one_machine: bool = False
    store: bool = False
    machine: str = field(default_factory=this_machine)
    unix: bool = True

    @classmethod
    def of(cls, url: ParsedUrl, environ: Mapping[str, str]) -> "TcpConfig":
        """Parse `tcp://[HOST:PORT][?wait=SECONDS&unix=no]` and torchrun's variables; the URL's host and port win.

        Raises:
            ValueError: the URL is malformed. RendezvousError: a variable is missing or malformed.
            AuthenticationError: the key cannot be read.
        """
        wait = url.seconds("wait", WAIT_S)
        unix = url.switch("unix")
        url.check_all_taken(host=True)
        if url.port == 0:
            raise ValueError(f"the ranks cannot meet at port 0 in {url.text!r}; write a port from 1 to 65535")
        world_size = required_int(environ, "WORLD_SIZE", minimum=1)
        host = url.host or required(environ, "MASTER_ADDR")
        port = url.port or required_int(environ, "MASTER_PORT", minimum=1, maximum=65535)
        master = environ.get("MASTER_ADDR", "").lower(), environ.get("MASTER_PORT")
        return cls(
            rank=required_int(environ, "RANK", maximum=world_size - 1),
            world_size=world_size,
            host=host,
            port=port,
            run=f"{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            shared_key=read_shared_key(environ),
            wait=wait,
            unix=unix,
            one_machine=environ.get("LOCAL_WORLD_SIZE") == str(world_size),
            store=master == (host.lower(), str(port)) and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            machine=environ.get("PIPELINED_NODE") or this_machine(),
        )


def required(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise RendezvousError(f"{name} is not set; {LAUNCH}")
    return environ[name]


def required_int(environ: Mapping[str, str], name: str, minimum: int = 0, maximum: int = 2**32 - 1) -> int:
    text = required(environ, name)
    if not text.isascii() or not text.isdecimal() or not minimum <= int(text) <= maximum:
        raise RendezvousError(f"{name} must be an integer from {minimum} to {maximum} (got: {text!r}); {LAUNCH}")
    return int(text)
