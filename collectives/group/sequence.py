"""The calls of one group on one rank, one after another.

    enter     wait for the group's lock; start the check of its waiting time (see `WaitCheck`)
    leave     release the lock; a failed call breaks the group on this rank and sends nothing: the owner of the
              transport must abort it

Unless a call waits long, it sends only the collective's own bytes and creates no task and no timer.
"""

import zlib
from collections.abc import Coroutine
from typing import Any

from collectives.errors import Unsupported
from collectives.group.call import Call
from collectives.group.fifo_lock import FifoLock
from collectives.group.identity import GroupIdentity
from collectives.group.signature import Signature
from collectives.group.wait_check import WaitCheck
from transports.aio.nursery import this_task

PATIENCE_S = 10.0
"""Seconds that a rank waits in a call before it reports its call to the first rank."""


class CallSequence:
    """The calls of one group on one rank, one at a time.

    Args:
        identity: the ranks of the group.
        patience: seconds (see `WaitCheck`).
    Attributes:
        wait_check: ends calls that wait for one another.
    """

    def __init__(self, identity: GroupIdentity, patience: float):
        transport = identity.transport
        self._rank, self._number = transport.rank, 0
        self._running: Call | None = None
        self._lock = FifoLock(f"Group{identity}")
        name = "collective", identity.channel, zlib.crc32(repr(identity.ranks).encode())
        key = *name, transport.next_serial(name)  # differs from the keys of other groups, also of earlier ones
        self.wait_check = WaitCheck(identity, key, patience)

    @property
    def running(self) -> Call:
        """The running call.

        Raises:
            RuntimeError: there is none.
        """
        if self._running is None:
            raise RuntimeError("no collective is running on this group; use its messages inside `group.call`")
        return self._running

    def call(self, signature: Signature) -> "CallContext":
        """A call with this signature, to be entered."""
        return CallContext(self, Call(self._rank, signature))

    async def enter(self, call: Call) -> Call:
        """Wait for the turn of this call, and start it. Raises BrokenGroup: an earlier call ended half done."""
        if call is not self._running:  # else it was started in a thread
            if not self._lock.acquire_nowait():
                await self._lock.acquire()
            self._start(call)
        call.task = this_task()
        self.wait_check.start(call)
        return call

    def start_in_thread(self, signature: Signature) -> Call | None:
        """Start a call in another thread than the loop's, which may wait only for a moment; None: another one runs.

        `end_in_thread` ends it; or the loop enters it, to wait for longer. No other call of the group may start at the
        same time.
        """
        if not self._lock.acquire_nowait():
            return None
        call = Call(self._rank, signature)
        self._start(call)
        return call

    def _start(self, call: Call) -> None:
        self._number += 1
        call.number, self._running = self._number, call

    def end_in_thread(self, error: BaseException | None) -> None:
        """End the running call, which no task has entered; an error breaks the group."""
        self._running = None
        self._lock.release(error)

    async def leave(self, error: BaseException | None) -> None:
        """End the running call, with the error that ended it, if any. Raises Mismatch: a rank called it differently."""
        if isinstance(error, Unsupported):
            error = None
        try:
            await self.wait_check.stop(error)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._running = None
            self._lock.release(error)


class CallContext:
    """An async context in which a collective runs on a group; entered once.

    Raises:
        BrokenGroup: an earlier call ended before it was done; nothing was sent.
        Mismatch: ranks called it differently (both are named). PeerLost: a rank of the group that this one waits for
            was lost. PeerAborted: the owner of another rank's transport aborted it.
    """

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: CallSequence, call: Call):
        self._calls, self._call = calls, call

    def __aenter__(self) -> Coroutine[Any, Any, Call]:
        return self._calls.enter(self._call)

    def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Coroutine[Any, Any, None]:
        return self._calls.leave(error)
