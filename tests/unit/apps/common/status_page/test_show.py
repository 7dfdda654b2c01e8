"""The status in a terminal and in a file: with --watch a file has every status, whole."""

import asyncio
from collections.abc import AsyncIterator

from apps.common.flags.command_flags import ShowFlags
from apps.common.status_page.show import show
from apps.common.status_page.web import Rendering


class Status:
    def __init__(self, step: int):
        self.step = step

    def to_dict(self):
        return {"step": self.step}


RENDERING = Rendering[Status]("a system", lambda seen: f"step {seen.step}")


async def statuses(count: int) -> AsyncIterator[Status]:
    for step in range(count):
        yield Status(step)


def test_a_watched_status_goes_to_a_file_at_each_interval(capsys):
    seen = []

    async def read() -> AsyncIterator[Status]:
        async for status in statuses(3):
            yield status
            seen.append(capsys.readouterr().out)

    asyncio.run(show(ShowFlags(watch=True), read(), RENDERING))
    assert seen == ["step 0\n", "step 1\n", "step 2\n"]


def test_a_status_that_is_not_watched_is_printed_once(capsys):
    asyncio.run(show(ShowFlags(), statuses(3), RENDERING))
    assert capsys.readouterr().out == "step 0\n"
