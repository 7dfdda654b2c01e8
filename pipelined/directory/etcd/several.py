"""Watching several prefixes of an etcd cluster as one.

etcd orders the changes of one watch, and not those of several. So each prefix has a watch of its own, which only says
that there is news; then one transaction reads all prefixes, and what differs from the last reading has changed.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from pipelined.directory.api import Change, Directory, View


async def watch_several(
    directory: Directory, prefixes: tuple[str, ...], before: View
) -> AsyncIterator[Sequence[Change]]:
    """What changes after a view of these prefixes.

    Raises: as `Directory.watch`.
    Cost: for each item a reading of all that lies below the prefixes.
    """
    streams = [directory.watch(prefix, before.revision) for prefix in prefixes]
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                waiting[asyncio.ensure_future(anext(stream))] = stream
            if max(task.result()[-1].revision for task in done) > before.revision:
                now = await directory.read(prefixes)
                changes, before = difference(before, now), now
                yield changes
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def difference(before: View, now: View) -> list[Change]:
    """What has changed from one view of the same prefixes to a later one, in order."""
    put = [Change(key, entry, entry.revision) for key, entry in now.entries.items() if entry.revision > before.revision]
    gone = [Change(key, None, now.revision) for key in before.entries.keys() - now.entries.keys()]
    return sorted(put, key=lambda change: change.revision) + gone
