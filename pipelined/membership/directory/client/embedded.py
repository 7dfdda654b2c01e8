"""A client of an embedded directory.

A request keeps its number in every retry, so the directory carries it out at most once.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pipelined.aio.clock import Clock
from pipelined.aio.latency import RoundTrip
from pipelined.aio.tasks import Notifier
from pipelined.membership.directory import messages
from pipelined.membership.directory.api import (
    Change,
    Conflict,
    CutOff,
    Directory,
    DirectoryRefusal,
    Entry,
    Lease,
    Prefixes,
    Snapshot,
    WrongKey,
)
from pipelined.membership.directory.client.retry import PATIENCE_S, NoReply, Retry
from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.membership.directory.messages import (
    ClientRequest,
    Enter,
    Entered,
    Grant,
    NamedRequest,
    NumberedRequest,
    Read,
    Renew,
    Revoke,
    Transact,
    Watch,
)
from transports.rpc import Endpoint, Party, Rejected, Request, Response, Unreachable
from transports.rpc.reasons import BUSY, FAILED, UNKNOWN_TOPIC

RETRYABLE = (UNKNOWN_TOPIC, BUSY, FAILED, messages.STOPPING)
"""Reasons of rejections after which the client retries: the directory is starting, stopping or busy."""


class ClientForgotten(CutOff):
    """The directory has forgotten this client, or the request was settled; whether it happened is unknown."""


class RetryingClient:
    """Sends the requests of one client to the directory, and retries.

    Args:
        patience: seconds without a reply after which `request` raises `CutOff`.
    """

    def __init__(self, endpoint: Endpoint, address: str, clock: Clock, patience: float):
        self.endpoint, self.address = endpoint, address
        self.retry = Retry(address, clock, patience)

    async def request(self, request: ClientRequest, wait: float | None = None) -> dict[str, Any]:
        """Send the same request until a reply comes.

        Args:
            wait: see `Retry.run`.
        Raises:
            CutOff: see `Retry.run`, or DirectoryRefusal. Exception: what a rejection stands for, see `messages.ERRORS`.
        """
        packed = messages.pack(vars(request))
        return await self.retry.run(lambda: self._try_once(request, packed), wait)

    async def _try_once(self, request: ClientRequest, packed: bytes) -> dict[str, Any]:
        try:
            return messages.unpack(await self.endpoint.request(self.address, request.topic, packed))
        except Unreachable as error:
            if error.wrong_key:
                raise WrongKey(f"the directory at {error}") from error
            raise NoReply(str(error)) from error
        except Rejected as rejection:
            raise self._error_of(rejection, request) from rejection

    def _error_of(self, rejection: Rejected, request: ClientRequest) -> Exception:
        if rejection.reason in RETRYABLE:
            return NoReply(str(rejection))
        if rejection.reason == messages.OTHER_DIRECTORY:
            names = f"its name: {rejection.facts.get('here')}, the former one's: {vars(request).get('name')}"
            fact = f"another directory replies at {self.address}, and has none of the former records ({names})"
            return DirectoryRefusal(f"{fact}; give the directory its journal, or start everything afresh")
        if rejection.reason == "stale request":
            fact = f"the directory at {self.address} cannot say whether it happened"
            return ClientForgotten(f"{fact} ({rejection.facts.get('why')}); read to find out")
        return messages.error_of(rejection)


class EmbeddedDirectory(Directory):
    """A directory served by `serve_directory`.

    Args:
        endpoint: sends the requests; the caller closes it.
        address: of the directory.
        patience: seconds without a reply after which calls raise `CutOff`. A watch repeats its request after half of
            this time, and so detects a directory that does not reply.
    """

    def __init__(self, endpoint: Endpoint, address: str, clock: Clock, patience: float = PATIENCE_S):
        self.connection_broke = Notifier()
        self.breaks = 0
        self._client = RetryingClient(endpoint, address, clock, patience)
        self._limits = DirectoryLimits()
        self._entered: Entered | None = None
        self._next_number = 0
        self._unsettled = dict[int, None]()
        self._closed = False
        self._remove_callback = endpoint.add_lost_callback(self._on_connection_lost)
        endpoint.handle(messages.ALIVE, partial(_reply_alive, endpoint))

    async def read(self, prefix: Prefixes = "") -> Snapshot:
        self._limits.check_prefixes(prefix)
        reply = await self._request(partial(Read, prefix=prefix))
        return Snapshot(reply["revision"], {key: Entry(*entry) for key, entry in reply["entries"]})

    async def transact(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> int:
        self._limits.check_transaction(expect, put, delete)
        number = lease.number if lease else 0
        build = partial(Transact, expect=dict(expect), put=dict(put), delete=list(delete), lease=number)
        reply = await self._request_numbered(build)
        if "conflict" in reply:
            raise Conflict(messages.unpack_entries(reply["conflict"]))
        return reply["revision"]

    async def watch(self, prefix: Prefixes, after: int) -> AsyncIterator[Sequence[Change]]:
        self._limits.check_prefixes(prefix)
        wait = min(self._client.retry.patience / 2, self._limits.longest_wait)
        while True:
            reply = await self._request(partial(Watch, prefix=prefix, after=after, wait=wait), wait)
            if changes := messages.unpack_changes(reply["changes"]):
                yield changes
            after = reply["through"]

    async def grant(self, seconds: float, lasting: bool = False) -> Lease:
        self._limits.check_seconds(seconds)
        observed, breaks = self._round_trip.is_measured, self.breaks
        grace = seconds if lasting else self.grace
        reply = await self._request_numbered(partial(Grant, seconds=seconds, grace=grace))
        lease = EmbeddedLease(self, reply["lease"], seconds, breaks)
        if not observed and not lasting:
            await lease.renew()  # the grant had no measured grace period; the renewal sends one
        return lease

    async def close(self) -> None:
        self._closed = True
        self._remove_callback()

    @property
    def grace(self) -> float:
        """Seconds for which the directory keeps the leases after the connection breaks: the time-out for a reply."""
        return self._round_trip.timeout

    @property
    def _round_trip(self) -> RoundTrip:
        return self._client.retry.round_trip

    async def renew(self, lease: int) -> None:
        await self._request(partial(Renew, lease=lease, grace=self.grace))

    async def revoke(self, lease: int) -> None:
        await self._request(partial(Revoke, lease=lease))

    async def _request_numbered(self, build: Callable[..., NumberedRequest]) -> dict[str, Any]:
        """Send a request that must not be carried out twice.

        Args:
            build: makes the request from the fields of `NumberedRequest`.
        """
        with self._numbered() as number:
            settled = next(iter(self._unsettled))
            entered = await self._enter()
            try:
                return await self._request(partial(build, client=entered.client, number=number, settled=settled))
            except ClientForgotten:
                if self._entered is entered:
                    self._entered = replace(entered, client=None)
                raise

    async def _request(self, build: Callable[..., NamedRequest], wait: float | None = None) -> dict[str, Any]:
        """Send a request.

        Args:
            build: makes it from the directory's name.
            wait: see `Retry.run`.
        """
        entered = await self._enter()
        return await self._client.request(build(name=entered.name), wait)

    async def _enter(self) -> Entered:
        """Request a client number, and learn the directory's name.

        A client that the directory has forgotten enters again under a new number, but keeps the directory's name: so a
        directory that lost its journal rejects it.
        """
        if self._closed:
            raise CutOff(f"the directory at {self._client.address} was closed here; open it again")
        entered_before = self._entered
        if entered_before and entered_before.client is not None:
            return entered_before
        entered = Entered(**await self._client.request(Enter(), 0.0))  # includes the time to connect
        if self._entered is entered_before:  # no other request has entered meanwhile
            self._entered = replace(entered, name=entered_before.name) if entered_before else entered
        return self._entered or entered

    @contextmanager
    def _numbered(self) -> Iterator[int]:
        """The number of a new request; it counts as settled when the block ends."""
        number, self._next_number = self._next_number, self._next_number + 1
        self._unsettled[number] = None
        try:
            yield number
        finally:
            del self._unsettled[number]

    def _on_connection_lost(self, party: Party) -> None:
        addresses = {self._client.address, self._entered and self._entered.address}
        if party.address in addresses:
            self.breaks += 1
            self.connection_broke.notify_all()


async def _reply_alive(endpoint: Endpoint, request: Request) -> Response:
    """Reply to the directory's check of this client with the incarnation of this endpoint."""
    return Response(note=endpoint.incarnation)


class EmbeddedLease(Lease):
    """A lease of an embedded directory.

    Args:
        breaks: breaks of the connection that were counted before the lease was requested.
    """

    def __init__(self, directory: EmbeddedDirectory, number: int, seconds: float, breaks: int):
        self.number, self.seconds = number, seconds
        self._directory, self._breaks = directory, breaks

    async def renew(self) -> None:
        breaks = self._directory.breaks
        await self._directory.renew(self.number)
        self._breaks = breaks

    async def revoke(self) -> None:
        await self._directory.revoke(self.number)

    async def wait_disturbed(self) -> None:
        while self._breaks == self._directory.breaks:
            await self._directory.connection_broke.wait()
