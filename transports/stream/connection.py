"""One connection to one peer, driven by the event loop's readiness callbacks; it needs no task.

A connection ends exactly once. If neither side has sent a last frame, its owner gets the reason. Bytes are read
whenever there are any, so two ranks that both write never wait for each other. The owner interprets the frames.

    `Ending`         queued frames   started ones   offers (`TcpPeer`)   what is received   socket
    STOP_RECEIVING   are sent        are sent       fail                 fails              stays open
    CLOSE            are sent        are sent       are sent, or fail *  fails              closes after a last frame
    ABORT            fail            are sent       fail                 fails              closes after a last frame
    DROP             fail            fail           fail                 fails              closes now

    * beyond `CLOSING_BYTES`
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from transports.errors import WireError
from transports.stream.reader import FrameReader
from transports.stream.sockets import ACK_TIMEOUT_S, seconds_unacknowledged, system_text, unacknowledged
from transports.stream.writer import LONG_BYTES, FrameQueue, OutgoingFrame

DISCARD_BYTES = 64 << 10
UNQUEUED_BYTES = 64 << 10  # the longest frame that is written at once, without the queue
STEP_BYTES = 64 << 10  # bytes that a peer must take within the time-out while this end closes
CHECKS = 12  # checks of a connection within the time-out
MAX_BYTES_PER_CALLBACK = 2 << 20  # bytes read from or written to one peer before the other peers' turn


class Ending(Enum):
    """The way in which a connection ends: see the table above."""

    STOP_RECEIVING = auto()  # another rank aborted; this rank closes later
    CLOSE = auto()
    ABORT = auto()
    DROP = auto()  # this rank is killed, or the peer is lost


class ConnectionOwner(ABC):
    """The owner of a connection, which learns how it ends."""

    @abstractmethod
    def on_broken(self, reason: str) -> None:
        """The connection has ended, and neither side has sent a last frame. Called once."""

    def on_invalid(self, error: WireError) -> None:  # noqa: B027 (most owners need only the reason)
        """The bytes read are not a frame; `on_broken` follows."""


class FrameConnection:
    """Owns a connected, authenticated socket.

    Args:
        reader: parses the bytes read.
        chunk: maximum bytes of one write call.
        timeout: seconds without an acknowledgement of sent bytes after which the connection ends.
    """

    def __init__(
        self,
        sock: socket.socket,
        reader: FrameReader[Any],
        owner: ConnectionOwner,
        chunk: int = LONG_BYTES,
        timeout: float = ACK_TIMEOUT_S,
    ):
        self._sock, self._owner = sock, owner
        self._reader: FrameReader[Any] | None = reader
        self._queue = FrameQueue(self._sendmsg, chunk)
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._writing = False
        self._closing_error: Exception | None = None
        self._ended_by: Exception | None = None
        self._moved_bytes = 0  # bytes read and written
        self._loop.add_reader(sock, self._read)
        self._timeout = timeout
        self._waited = False
        self._next_check = self._loop.call_later(timeout / CHECKS, self._check_alive)

    def write(self, views: Sequence[bytes | memoryview]) -> OutgoingFrame | None:
        """Write what the kernel accepts at once, and queue the rest.

        Returns: None if nothing is left; else the frame. The caller awaits its `written` before it reuses the memory.
        """
        waiting = bool(self._queue)
        nbytes = sum(map(len, views))
        count = 0 if waiting or nbytes > UNQUEUED_BYTES else self._write_short(views)
        if nbytes and count == nbytes:
            return None
        frame = self._queue.push(views)
        if self._ended_by is not None:
            self._queue.fail(self._ended_by, started=True)
        elif not waiting:
            frame.advance(count)
            self._flush()
        return frame if frame.views else None

    def _write_short(self, views: Sequence[bytes | memoryview]) -> int:
        """Try to write a short frame without queueing it. Returns the bytes written."""
        if self._closed.done():
            return 0
        try:
            count = self._sock.sendmsg(views)
        except OSError:
            return 0  # full or broken: `_flush` meets the same error and handles it
        self._moved_bytes += count
        return count

    @property
    def missing(self) -> int:
        """Bytes that are still to come of the body that is being read."""
        return self._reader.missing if self._reader else 0

    @property
    def bytes_moved(self) -> int:
        """Bytes that came, and those of the sent ones that the peer's kernel has acknowledged."""
        return self._moved_bytes - (0 if self._closed.done() else unacknowledged(self._sock))

    def withdraw(self, frame: OutgoingFrame) -> bool:
        """The frame's sender was cancelled. Returns True if no byte of the frame will be sent."""
        return self._queue.withdraw(frame)

    def end(self, ending: Ending, error: Exception, last_views: Sequence[bytes | memoryview] = ()) -> None:
        """End in this way: see the table of the module. The receivers' arrays are not written again.

        Args:
            error: the error of all that fails, then or later.
            last_views: CLOSE, ABORT: a last frame. Once it is written, the sending side shuts down; then `wait_closed`.
        """
        if ending is Ending.DROP:
            return self._drop(error)
        if self._reader is not None:
            self._reader.fail(error)
        if ending is Ending.ABORT:
            self._queue.fail(error, started=False)
        if ending is not Ending.STOP_RECEIVING and self._closing_error is None and not self._closed.done():
            self._closing_error = error
            self._reader = None  # bytes that come from now on are dropped
            self._queue.push(last_views)
            self._flush()

    async def wait_closed(self, seconds: float) -> None:
        """After a last frame, wait until the peer has closed too, which shows that it received everything; then close.

        Only bytes that the peer takes count as progress; bytes that it sends are dropped. So closing takes at most
        `seconds` for each 64 KiB still to be written, plus once `seconds`.

        Args:
            seconds: the time in which the peer must take 64 KiB or all that is left; else the connection ends.
        """
        moving = True
        try:
            while moving and not self._closed.done():
                undelivered = self._undelivered()
                await asyncio.wait([self._closed], timeout=seconds)
                moving = undelivered - self._undelivered() >= min(undelivered, STEP_BYTES) > 0
        finally:
            if self._closing_error is not None:
                self._drop(self._closing_error)

    def _undelivered(self) -> int:
        """Bytes that the peer's kernel has not acknowledged."""
        return 0 if self._closed.done() else self._queue.nbytes + unacknowledged(self._sock)

    def _drop(self, error: Exception) -> None:
        if self._closed.done():
            return
        self._closed.set_result(None)
        self._ended_by = error
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._next_check.cancel()
        self._sock.close()
        self._queue.fail(error, started=True)
        if self._reader is not None:
            self._reader.fail(error)

    def _check_alive(self) -> None:
        """End the connection if the peer's machine has vanished: two checks in a row must find unacknowledged bytes.

        A single check could fall between a probe and its answer.
        """
        silent = seconds_unacknowledged(self._sock)
        if silent is not None and silent >= self._timeout and self._waited:
            return self._on_broken(f"nothing that was sent is acknowledged (seconds: {silent:.0f})")
        self._waited = silent is not None
        self._next_check = self._loop.call_later(self._timeout / CHECKS, self._check_alive)

    def _read(self) -> None:
        try:
            limit = self._moved_bytes + MAX_BYTES_PER_CALLBACK
            while self._read_some() and self._moved_bytes < limit:
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_broken(f"the connection broke ({system_text(error)})")
        except WireError as error:
            self._owner.on_invalid(error)
            self._on_broken(f"it sent an invalid frame: {error}")
        except MemoryError:
            self._on_broken("there is no memory for a message it announced")

    def _read_some(self) -> bool:
        """Read once. Returns whether to read on: the next bytes of a large body have probably come already."""
        reader = self._reader
        buffer = memoryview(bytearray(DISCARD_BYTES)) if reader is None else reader.buffer()
        count = self._sock.recv_into(buffer)
        self._moved_bytes += count
        if not count:
            self._on_broken("the connection was closed without a goodbye")
        elif reader is not None:
            direct = reader.direct
            reader.advance(count)
            return direct and reader is self._reader and not self._closed.done()
        return False

    def _flush(self) -> None:
        try:
            self._moved_bytes += self._queue.flush(MAX_BYTES_PER_CALLBACK)
            if not self._queue and self._closing_error is not None:
                self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:  # report it later: this write may answer a frame that is being read
            self._loop.call_soon(self._on_broken, f"the connection broke ({system_text(error)})")
            return
        if bool(self._queue) != self._writing and not self._closed.done():
            self._writing = bool(self._queue)
            if self._writing:
                self._loop.add_writer(self._sock, self._flush)
            else:
                self._loop.remove_writer(self._sock)

    def _on_broken(self, reason: str) -> None:
        if self._closing_error is not None:
            self._drop(self._closing_error)
        elif not self._closed.done():
            self._owner.on_broken(reason)

    def _sendmsg(self, views: list[memoryview]) -> int:
        return self._sock.send(views[0]) if len(views) == 1 else self._sock.sendmsg(views)
