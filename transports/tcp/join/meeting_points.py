"""Meeting points: where rank 0 listens, and how the other ranks find it. The launcher's use of MASTER_PORT decides.

`MasterPort`: the launcher leaves the port free, and rank 0 listens there. `AgentStore`: torchrun's store uses the port,
and rank 0 publishes its address in the store. `NodeFile`: all ranks run on one machine under torchrun, and rank 0
writes its address into a file. The store would work there too, but needs torch, which takes seconds to import.

Without a shared key ranks meet on loopback only.
"""

import asyncio
import errno
import fcntl
import os
import secrets
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from transports.errors import RendezvousError
from transports.stream.sockets import SocketAddress, address_to_bind, family, is_loopback, listen, lookup, system_text
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.identity import digest

LOOPBACK = "127.0.0.1"
STORE_S = 6.0
KEY_BYTES = 32
FILE_BYTES = 256


class MeetingPoint(ABC):
    """Rank 0 calls `listen` once; every other rank calls `find` repeatedly.

    Attributes:
        shared_key: that of the meeting point, available after `listen` or `find`; empty if it has none.
    """

    shared_key: bytes = b""

    @abstractmethod
    async def listen(self) -> socket.socket:
        """Listen for the other ranks; raises RendezvousError if that is impossible."""

    @abstractmethod
    async def find(self) -> list[SocketAddress]:
        """The numeric addresses to try now, best first; empty while rank 0 has published none.

        Raises:
            OSError: they cannot be found now; a later call may find them.
        """

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Called by rank 0 after the rendezvous. Most meeting points do nothing: they may stay until the job ends."""


def meeting_point(config: TcpConfig) -> MeetingPoint:
    if not config.store:
        return MasterPort(config)
    return NodeFile(config) if config.one_machine else AgentStore(config)


class MasterPort(MeetingPoint):
    """Rank 0 itself listens at MASTER_ADDR:MASTER_PORT."""

    def __init__(self, config: TcpConfig):
        self._config = config
        self._host = LOOPBACK if config.one_machine else config.host

    async def listen(self) -> socket.socket:
        try:
            return listen(address_to_bind((await self._resolve())[0]))
        except OSError as error:
            taken = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({system_text(error)})"
            fact = f"the port where rank 0 should listen {taken} (host: {self._host}, port: {self._config.port})"
            raise RendezvousError(f"{fact}; choose another MASTER_PORT, or end the program that holds it") from error

    async def find(self) -> list[SocketAddress]:
        return await self._resolve()

    async def _resolve(self) -> list[SocketAddress]:
        try:
            addresses = await lookup(self._host, self._config.port)
        except OSError as error:
            if error.errno == socket.EAI_AGAIN:  # the name server does not reply now
                raise
            raise RendezvousError(f"no address for the host {self._host!r} ({error}); check MASTER_ADDR") from error
        return [checked_address(address, self._config) for address in addresses]


class AgentStore(MeetingPoint):
    """torchrun's agent serves a TCPStore at MASTER_PORT: rank 0 publishes its address there.

    Only bytes pass through the store. torch is imported at the first call, which runs in a thread like all others.
    """

    def __init__(self, config: TcpConfig):
        self._config = config
        self._store: Any = None
        self._name = f"pipelined/{config.run}/rank 0"

    async def listen(self) -> socket.socket:
        host = await self._own_host()
        listener = listen(address_to_bind((host, 0)))
        try:
            text = f"{host} {listener.getsockname()[1]}"
            await self._call_store(lambda store: store.set(self._name, text.encode()))
        except BaseException:
            listener.close()
            raise
        return listener

    async def find(self) -> list[SocketAddress]:
        if not await self._call_store(lambda store: store.check([self._name])):
            return []
        published = await self._call_store(lambda store: store.get(self._name))
        host, _, port = published.decode(errors="replace").partition(" ")
        try:
            return [checked_address((host, int(port)), self._config)]
        except ValueError as error:
            fact = f"torchrun's store holds no address under {self._name!r} ({published[:64]!r})"
            raise RendezvousError(fact) from error

    async def _own_host(self) -> str:
        """This machine's address on the route to the store; the others are assumed to reach this machine there."""
        try:
            address = (await lookup(self._config.host, self._config.port))[0]
            with socket.socket(family(address[0]), socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return checked_address(probe.getsockname(), self._config)[0]
        except OSError as error:
            raise RendezvousError(f"cannot reach {self._config.host!r} ({error}); check MASTER_ADDR") from error

    async def _call_store(self, operation: Callable[[Any], Any]) -> Any:
        try:
            return await asyncio.to_thread(lambda: operation(self._open_store()))
        except RuntimeError as error:
            at = f"{self._config.host}:{self._config.port}"
            raise RendezvousError(f"torchrun's store at {at} does not answer ({error}); start the job again") from error

    def _open_store(self) -> Any:
        if self._store is None:
            from torch.distributed import TCPStore

            limit = timedelta(seconds=STORE_S)
            self._store = TCPStore(self._config.host, self._config.port, is_master=False, timeout=limit)
        return self._store


def checked_address(address: SocketAddress, config: TcpConfig) -> SocketAddress:
    if is_loopback(address[0]) or config.shared_key:
        return address
    raise RendezvousError(
        f"the ranks would leave this machine without a shared key (rank 0 at: {address[0]}); "
        "set PIPELINED_KEY or PIPELINED_KEY_FILE on every rank, or MASTER_ADDR=127.0.0.1 to stay on one machine"
    )


class NodeFile(MeetingPoint):
    """Rank 0 writes its port into a file, named by the launcher's port (unique to a job of this machine) and the run.

        <port> <key in hexadecimal>      mode 0600, in a folder that only this user can read and write

    Rank 0 draws a new key for each meeting, so that only processes that can read the file are admitted as ranks. Rank 0
    holds a lock on the file during the rendezvous. The kernel releases the lock if rank 0 dies, so a file without a
    lock was left by a dead rank 0 and is ignored: its port may belong to another program now.

    Attributes:
        shared_key: that of this meeting, set when `listen` has returned, or `find` has returned an address.
    """

    def __init__(self, config: TcpConfig):
        self._file = private_folder() / f"{config.port}-{digest(config.run).hex()}"
        self._locked: int | None = None
        self.shared_key = b""

    async def listen(self) -> socket.socket:
        """Listen, and write the port and a new key into the file; replaces the file of a dead rank 0."""
        listener = listen((LOOPBACK, 0))
        self.shared_key = secrets.token_bytes(KEY_BYTES)
        try:
            self._publish(f"{listener.getsockname()[1]} {self.shared_key.hex()}")
        except BaseException:
            listener.close()
            raise
        return listener

    async def find(self) -> list[SocketAddress]:
        """The address in the file, if a running rank 0 wrote it.

        Raises:
            RendezvousError: another user could have written or read the file, or its content is malformed.
        """
        return self._read_file()

    def close(self) -> None:
        """Remove the file after the rendezvous, unless another rank 0 has replaced it."""
        if self._locked is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._file), os.fstat(self._locked)):
                self._file.unlink()
        os.close(self._locked)
        self._locked = None

    def _read_file(self) -> list[SocketAddress]:
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._foreign_file(error.strerror) from error
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or status.st_mode & 0o170077 != 0o100000:
                raise self._foreign_file(f"owner: {status.st_uid}, mode: {status.st_mode:o}")
            return self._read(file.read(FILE_BYTES)) if is_locked(descriptor) else []

    def _publish(self, text: str) -> None:
        """Write a file of mode 0600 and lock it, then rename it to its final name."""
        self._locked, temporary = tempfile.mkstemp(dir=self._file.parent)
        try:
            with suppress(OSError):  # no locks on this file system: `is_locked` then returns True for every file
                fcntl.flock(self._locked, fcntl.LOCK_EX)
            os.write(self._locked, text.encode())
            os.replace(temporary, self._file)
        except BaseException:
            os.unlink(temporary)
            os.close(self._locked)
            self._locked = None
            raise

    def _read(self, data: bytes) -> list[SocketAddress]:
        try:
            port, key = data.decode().split()
            address = (LOOPBACK, int(port))
            self.shared_key = bytes.fromhex(key)
        except ValueError as error:
            raise self._foreign_file(f"{len(data)} bytes of another form") from error
        return [address]

    def _foreign_file(self, fact: str | None) -> RendezvousError:
        return RendezvousError(f"{self._file} was not left there by rank 0 of this user ({fact}); remove it")


def is_locked(file: int) -> bool:
    """Whether the process that locked an open file is running; also True if the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def private_folder() -> Path:
    """This user's folder for such files, created if missing.

    Raises:
        RendezvousError: another user owns it, or may read it or write into it.
    """
    folder = Path(tempfile.gettempdir(), f"pipelined-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        fact = f"{folder} is not a private folder of this user's (owner: {found.st_uid}, mode: {found.st_mode:o})"
        raise RendezvousError(f"{fact}; remove it, or set TMPDIR to a place of your own")
    return folder
