"""The server of an embedded directory: a state machine, its journal, and the endpoint that receives the requests.

Every reply waits until all transitions before it are in the journal, so a crash cannot lose what a client has seen.
Times are those of this process's clock. The owner of a lease is the client that requested or last renewed it. When a
connection to the owner breaks, the server requests a sign of life from it. Until the owner replies or renews, its
leases last only for the grace period of its last request.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import Notifier, with_timeout
from pipelined.membership.directory import messages
from pipelined.membership.directory.api import Change, Conflict, Prefixes
from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.membership.directory.messages import (
    ClientRequest,
    Enter,
    Entered,
    Grant,
    NamedRequest,
    Read,
    Renew,
    Revoke,
    Transact,
    Watch,
)
from pipelined.membership.directory.server.disk import Disk
from pipelined.membership.directory.server.journal import Journal, disk_of
from pipelined.membership.directory.server.state_machine import StateMachine
from pipelined.membership.directory.server.watchers import Watchers, size
from transports import Nursery, TransportError
from transports.rpc import Endpoint, Handler, Party, Rejected, Request, Response

PAUSE_S = 0.1
"""If a timer fires more than this after its time, the process did not run meanwhile."""
REPLY_BYTES = 1 << 20
"""Bytes of changes in one reply; further changes go into the next."""
SHARED_REPLIES = 1024
"""Packed replies that are kept for other clients with the same request, until the next change."""

Reply = dict[str, Any]
Operation = Callable[[Any, Party], Awaitable[Reply | bytes]]
"""Makes the reply to one kind of request of a client; bytes are a message that is already packed."""


async def serve_directory(
    endpoint: Endpoint,
    clock: Clock,
    journal: str | Path | Disk | None = None,
    limits: DirectoryLimits | None = None,
    ready: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Serve a directory at this endpoint's address until cancelled; the caller closes the endpoint.

    Args:
        journal: a file from which the directory recovers after a restart, or a simulated machine's disk. None: a
            restart begins another directory, which the clients refuse.
        limits: on the contents and on each request.
        ready: called when the directory can reply to requests.
    Raises:
        UsageError: the file is not a journal, or cannot be used.
        JournalError: the journal cannot be written any more; every reply so far is in it.
    """
    limits = limits or DirectoryLimits()
    machine = StateMachine(endpoint.incarnation, limits)
    opened_journal = Journal(disk_of(journal), f"the journal {journal}")
    try:
        await opened_journal.recover(machine)
        machine.renew_all(clock.now())
        ready()
        await _Server(endpoint, clock, limits, machine, opened_journal).run()
    finally:
        await opened_journal.close()


class _Server:
    def __init__(
        self, endpoint: Endpoint, clock: Clock, limits: DirectoryLimits, machine: StateMachine, journal: Journal
    ):
        self._endpoint, self._clock, self._limits = endpoint, clock, limits
        self._machine, self._journal = machine, journal
        self._owners: dict[int, Party] = {}
        self._graces: dict[Party, dict[int, float]] = {}
        self._tasks = Nursery()
        self._watchers = Watchers(clock)
        self._lease_changed = Notifier()
        self._replies: dict[tuple[Prefixes, int], tuple[bytes, bool]] = {}
        self._stopped = False

    async def run(self) -> NoReturn:
        """Reply to requests, write the journal, and end leases."""
        async with self._tasks as tasks:
            self._handle_requests()
            tasks.create_task(self._journal.write(self._machine), name="write the directory's journal")
            tasks.create_task(self._watchers.wake(), name="wake watchers")
            try:
                await self._end_leases()
            finally:
                self._stopped = True
        raise AssertionError("the expiry of leases ended")

    def _handle_requests(self) -> None:
        operations: dict[type[ClientRequest], Operation] = {
            Enter: self._enter,
            Read: self._read,
            Watch: self._watch,
            Transact: self._transact,
            Grant: self._grant,
            Renew: self._renew,
            Revoke: self._revoke,
        }
        for kind, operation in operations.items():
            self._endpoint.handle(kind.topic, self._handler(kind, operation), messages.max_bytes(self._limits))
        self._endpoint.add_lost_callback(self._on_connection_lost)

    async def _end_leases(self) -> NoReturn:
        """End each lease when it expires."""
        while True:
            self._end_expired()
            expiry = self._machine.next_expiry()
            if expiry is None:
                await self._lease_changed.wait()
                continue
            with suppress(TimeoutError):
                await with_timeout(self._clock, max(0.0, expiry - self._clock.now()), self._lease_changed.wait())

    def _handler(self, kind: type[ClientRequest], operation: Operation) -> Handler:
        async def respond(request: Request) -> Response:
            outcome = await self._execute(kind, operation, request)
            await self._journal.wait_durable()
            if isinstance(outcome, Rejected):
                raise outcome
            return Response((outcome if isinstance(outcome, bytes) else messages.pack(outcome),))

        return respond

    async def _execute(
        self, kind: type[ClientRequest], operation: Operation, request: Request
    ) -> Reply | bytes | Rejected:
        """Carry out a request; returns its reply, which is not sent yet."""
        if self._stopped:
            return Rejected(messages.STOPPING)
        try:
            message = kind.parse(request, self._limits)
            if isinstance(message, NamedRequest) and message.name != self._machine.name:
                return Rejected(messages.OTHER_DIRECTORY, here=self._machine.name)
            self._end_expired()
            return await operation(message, request.sender)
        except Conflict as conflict:
            return {"conflict": messages.pack_entries(conflict.entries)}
        except tuple(messages.ERRORS.values()) as error:
            return messages.rejection_of(error)
        finally:
            self._publish_transitions()

    async def _enter(self, request: Enter, sender: Party) -> Reply:
        return vars(Entered(self._machine.name, self._machine.enter(), self._endpoint.address))

    async def _read(self, request: Read, sender: Party) -> Reply:
        view = self._machine.read(request.prefix)
        return {"revision": view.revision, "entries": messages.pack_entries(view.entries)}

    async def _watch(self, request: Watch, sender: Party) -> bytes:
        """Reply when there are changes, or after the time that the request names."""
        prefixes, after = request.prefix, request.after
        deadline = self._clock.now() + min(request.wait, self._limits.longest_wait)
        with self._watchers.waiting(prefixes) as group:
            while True:
                reply, has_changes = self._changes_after(prefixes, after)
                remaining_s = deadline - self._clock.now()
                if has_changes or remaining_s <= 0:
                    return reply
                after = max(after, self._machine.revision)
                with suppress(TimeoutError):
                    await with_timeout(self._clock, remaining_s, group.wait())

    def _changes_after(self, prefixes: Prefixes, after: int) -> tuple[bytes, bool]:
        """A packed reply with the next changes, and whether it has any.

        The reply is computed once for all watchers at the same revision, until the next change.
        """
        if (prefixes, after) not in self._replies:
            if len(self._replies) >= SHARED_REPLIES:
                self._replies.clear()
            revisions = _first_part(self._machine.changes(prefixes, after))
            last_revision = revisions[-1][0].revision if revisions else after
            message = {"changes": messages.pack_changes(revisions), "through": last_revision}
            self._replies[prefixes, after] = messages.pack(message), bool(revisions)
        return self._replies[prefixes, after]

    async def _transact(self, request: Transact, sender: Party) -> Reply:
        changes = request.expect, request.put, request.delete, request.lease
        return {"revision": self._machine.transact(request.id, *changes)}

    async def _grant(self, request: Grant, sender: Party) -> Reply:
        lease = self._machine.grant(request.id, float(request.seconds), self._clock.now())
        self._set_owner(lease, sender, request.grace)
        self._lease_changed.notify_all()
        return {"lease": lease}

    async def _renew(self, request: Renew, sender: Party) -> Reply:
        self._machine.renew(request.lease, self._clock.now())
        self._set_owner(request.lease, sender, request.grace)
        return {}

    async def _revoke(self, request: Revoke, sender: Party) -> Reply:
        self._machine.revoke(request.lease)
        return {}

    def _set_owner(self, lease: int, owner: Party, grace: float) -> None:
        """Note the owner of a lease and its grace period in seconds."""
        if self._machine.has_lease(lease):
            self._remove_owner(lease)
            self._owners[lease] = owner
            self._graces.setdefault(owner, {})[lease] = grace

    def _remove_owner(self, lease: int) -> None:
        owner = self._owners.pop(lease, None)
        if owner is not None:
            del self._graces[owner][lease]
            if not self._graces[owner]:
                del self._graces[owner]

    def _on_connection_lost(self, party: Party) -> None:
        """A connection with a party broke; other connections with it may exist."""
        graces = self._graces.get(party)
        if not graces or self._stopped:
            return
        for lease, grace in graces.items():
            self._machine.shorten(lease, self._clock.now() + grace)
        self._lease_changed.notify_all()
        self._tasks.create_task(self._probe_owner(party, max(graces.values())), name=f"probe {party.address}")

    async def _probe_owner(self, party: Party, grace: float) -> None:
        """Request a sign of life from a party; if it replies, renew its leases."""
        with suppress(TransportError, TimeoutError):
            response = await with_timeout(self._clock, grace, self._endpoint.request(party.address, messages.ALIVE))
            if response.note != party.incarnation:
                return
            for lease in self._graces.get(party, ()):
                self._machine.renew(lease, self._clock.now())

    def _end_expired(self) -> None:
        """End expired leases; extend them first if this process did not run and so could not receive renewals."""
        now = self._clock.now()
        expiry = self._machine.next_expiry()
        if expiry is not None and now - expiry > PAUSE_S:
            self._machine.extend_after_pause(now)
        self._machine.expire(now)
        self._publish_transitions()

    def _publish_transitions(self) -> None:
        """Pass new transitions to the journal, and their changes to the watchers."""
        for name, *arguments in self._machine.transitions:
            if name == "end":
                self._remove_owner(arguments[0])
        if self._machine.transitions:
            self._journal.queue(self._machine.transitions)
            self._replies.clear()
            self._watchers.mark_changed(self._machine.take_changes())
        self._machine.transitions.clear()


def _first_part(revisions: Sequence[Sequence[Change]]) -> Sequence[Sequence[Change]]:
    """The first of these revisions, up to `REPLY_BYTES`, at least one."""
    nbytes = 0
    for count, changes in enumerate(revisions):
        nbytes += size(changes)
        if count and nbytes > REPLY_BYTES:
            return revisions[:count]
    return revisions
