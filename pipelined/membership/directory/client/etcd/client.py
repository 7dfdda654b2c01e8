"""A client of a directory kept by an etcd cluster.

etcd's own guarantees are used where they match the interface; `Marks` and `watch_several` add what etcd lacks.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import with_timeout
from pipelined.membership.directory.api import (
    Change,
    Conflict,
    CutOff,
    Directory,
    Entry,
    FellBehind,
    Lease,
    LeaseLost,
    Prefixes,
    Snapshot,
)
from pipelined.membership.directory.client.etcd.exactly_once import Marks
from pipelined.membership.directory.client.etcd.gateway import NOT_FOUND, OUT_OF_RANGE, EtcdError, Gateway
from pipelined.membership.directory.client.etcd.leases import EtcdLease
from pipelined.membership.directory.client.etcd.messages import EtcdMessage, Keys, revision_of
from pipelined.membership.directory.client.etcd.url import EtcdAddress
from pipelined.membership.directory.client.retry import FIRST_PAUSE_S, PATIENCE_S, NoReply
from pipelined.membership.directory.limits import DirectoryLimits


class EtcdDirectory(Directory):
    """A directory in an etcd cluster, which other programs may use too; revisions are those of the whole cluster.

    Args:
        address: the cluster and the namespace; see `EtcdAddress.parse`.
        patience: seconds without a reply from any member after which calls raise `CutOff`. A watch that receives
            nothing for half of this time starts again at the next member.
    """

    def __init__(self, address: EtcdAddress, clock: Clock, patience: float = PATIENCE_S):
        self._gateway = Gateway(address, clock, patience)
        self._clock = clock
        self._limits = DirectoryLimits()  # of one call; the cluster limits the totals
        self._keys = Keys(f"{address.namespace}/")
        self._marks = Marks(self._gateway, clock, f"{address.namespace}.marks/")

    async def read(self, prefix: Prefixes = "") -> Snapshot:
        self._limits.check_prefixes(prefix)
        return await self._read(prefix)

    async def transact(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> int:
        self._limits.check_transaction(expect, put, delete)
        keys = self._keys
        number = lease.number if lease else 0
        compare = [keys.compare(key, revision) for key, revision in expect.items()]
        success = [*(keys.put(key, value, number) for key, value in put.items()), *map(keys.delete, delete)]
        failure = [keys.get(key) for key in expect]
        transact = self._marks.transact if success else self._compare
        try:
            revision, ranges = await transact(compare, success, failure)
        except EtcdError as error:
            if error.code == NOT_FOUND:
                raise LeaseLost(f"no such lease (lease: {number}); it expired or was revoked") from error
            raise
        if not revision:
            entries = {key: entry for reply_range in ranges for key, entry in keys.entries(reply_range).items()}
            raise Conflict({key: entries.get(key) for key in expect})
        return revision

    async def watch(self, prefix: Prefixes, after: int) -> AsyncGenerator[Sequence[Change]]:
        self._limits.check_prefixes(prefix)
        changes = self._watch_one(prefix, after) if isinstance(prefix, str) else self._watch_several(prefix, after)
        async with aclosing(changes):
            async for change in changes:
                yield change

    async def _read(self, prefix: Prefixes, revision: int = 0) -> Snapshot:
        """All entries under the prefixes at one revision; 0: the current one. Raises EtcdError: OUT_OF_RANGE."""
        prefixes = (prefix,) if isinstance(prefix, str) else prefix
        ranges = [
            {"request_range": {**self._keys.prefix_range(prefix), "revision": str(revision)}} for prefix in prefixes
        ]
        reply = await self._gateway.call("kv/txn", {"success": ranges})
        entries: dict[str, Entry] = {}
        for response in reply["responses"]:
            entries |= self._keys.entries(response["response_range"])
        return Snapshot(revision or revision_of(reply), entries)

    async def _watch_several(self, prefixes: tuple[str, ...], after: int) -> AsyncGenerator[Sequence[Change]]:
        try:
            snapshot = await self._read(prefixes, after) if after else Snapshot(0, {})
        except EtcdError as error:
            if error.code != OUT_OF_RANGE:
                raise
            raise FellBehind(f"changes are kept from a later revision on (after: {after}); read again") from error
        async with aclosing(watch_several(self, prefixes, snapshot)) as changes:
            async for change in changes:
                yield change

    async def _watch_one(self, prefix: str, after: int) -> AsyncGenerator[Sequence[Change]]:
        while True:
            create_request = {**self._keys.prefix_range(prefix), "start_revision": str(after + 1)}
            stream, reply = await self._gateway.stream("watch", {"create_request": create_request})
            try:
                while not reply.get("canceled"):
                    if changes := self._keys.changes(reply):
                        yield changes
                        after = changes[-1].revision
                    reply = await with_timeout(self._clock, self._gateway.retry.patience / 2, anext(stream))
            except (NoReply, TimeoutError):
                self._gateway.use_next_member()
            finally:
                await stream.close()
            if oldest_revision := int(reply.get("compact_revision", 0)):
                raise FellBehind(f"changes are kept from revision {oldest_revision} on (after: {after}); read again")
            await self._clock.sleep(FIRST_PAUSE_S)

    async def grant(self, seconds: float, lasting: bool = False) -> Lease:
        self._limits.check_seconds(seconds)
        number, _ = await self._marks.transact([], [], [])  # a revision is greater than all before it, and unique
        return await EtcdLease.grant(self._gateway, number, seconds)

    async def close(self) -> None:
        with suppress(CutOff, EtcdError, TimeoutError):
            await with_timeout(self._clock, self._gateway.retry.round_trip.timeout, self._marks.close())
        await self._gateway.close()

    async def _compare(
        self, compare: Sequence[EtcdMessage], success: Sequence[EtcdMessage], failure: Sequence[EtcdMessage]
    ) -> tuple[int, list[EtcdMessage]]:
        """Run a transaction that changes nothing; it may run twice."""
        reply = await self._gateway.call("kv/txn", {"compare": compare, "failure": failure})
        if reply.get("succeeded"):
            return revision_of(reply), []
        return 0, [response["response_range"] for response in reply["responses"]]


async def watch_several(
    directory: Directory, prefixes: tuple[str, ...], last_read: Snapshot
) -> AsyncGenerator[Sequence[Change]]:
    """Watch several prefixes as one; yield the changes after a snapshot of them.

    etcd orders the changes of one watch, but not those of several watches. So each prefix has its own watch, used only
    as a signal. Then one transaction reads all prefixes, and the difference from the last read is the changes.

    Raises: as `Directory.watch`.
    Cost: for each item a read of all entries under the prefixes.
    """
    streams = [directory.watch(prefix, last_read.revision) for prefix in prefixes]
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while True:
            done_tasks, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done_tasks:
                stream = waiting.pop(task)
                waiting[asyncio.ensure_future(anext(stream))] = stream
            if max(task.result()[-1].revision for task in done_tasks) > last_read.revision:
                current = await directory.read(prefixes)
                changes, last_read = difference(last_read, current), current
                yield changes
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def difference(earlier: Snapshot, later: Snapshot) -> list[Change]:
    """The changes from one snapshot to a later one of the same prefixes: puts by revision, then deletions."""
    puts = [
        Change(key, entry, entry.revision) for key, entry in later.entries.items() if entry.revision > earlier.revision
    ]
    deletions = [Change(key, None, later.revision) for key in earlier.entries.keys() - later.entries.keys()]
    return sorted(puts, key=lambda change: change.revision) + deletions
