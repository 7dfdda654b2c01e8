"""Which watchers of a directory are woken, and how often."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.membership.directory.api import Change, Entry
from pipelined.membership.directory.server.watchers import REPLY_S, Watchers

pytestmark = pytest.mark.virtual


def changed(key, revision):
    return [Change(key, Entry(b"", revision), revision)]


@asynccontextmanager
async def watching():
    watchers = Watchers(VirtualClock())
    async with asyncio.TaskGroup() as tasks:
        waking = tasks.create_task(watchers.wake())
        yield watchers, tasks
        waking.cancel()


class Watching:
    """One that waits again and again, and notes when it is woken."""

    def __init__(self, watchers, tasks, prefixes):
        self.woken, self._clock = [], VirtualClock()
        self.task = tasks.create_task(self._watch(watchers, prefixes))

    async def _watch(self, watchers, prefixes):
        with watchers.waiting(prefixes) as group:
            while True:
                await group.wait()
                self.woken.append(self._clock.now())


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_only_those_are_woken_that_a_change_concerns():
    async with watching() as (watchers, tasks):
        every, stage, several = (Watching(watchers, tasks, each) for each in ("", "stage/1/", ("head", "stage/2/")))
        await turns()
        for revision, key in enumerate(["stage/1/a", "stage/10/a", "head", "stage/2/b"], 1):
            watchers.mark_changed(changed(key, revision))
            await VirtualClock().sleep(1.0)
        assert (len(every.woken), len(stage.woken), len(several.woken)) == (4, 1, 2)
        for watcher in (every, stage, several):
            watcher.task.cancel()


async def test_one_change_wakes_at_once_and_simultaneous_ones_together():
    async with watching() as (watchers, tasks):
        crowd = [Watching(watchers, tasks, "") for _ in range(100)]
        await turns()
        watchers.mark_changed(changed("first", 1))
        await turns()
        assert crowd[0].woken == [0.0], "it waited for others"
        for revision in range(2, 22):
            watchers.mark_changed(changed("later", revision))
            await VirtualClock().sleep(10 * REPLY_S)
        await VirtualClock().sleep(1.0)
        assert len(crowd[0].woken) == 3, "as long as the answers to 100 take, changes are joined"
        for watcher in crowd:
            watcher.task.cancel()


async def test_an_empty_group_is_forgotten():
    async with watching() as (watchers, _):
        with watchers.waiting(("a/", "b")):
            pass
        watchers.mark_changed(changed("a/1", 1))
        assert not watchers._groups and not watchers._groups_by_prefix and not watchers._marked_groups
