"""How many files a rank may open for its connections, on each kind of event loop."""

import asyncio
import selectors
import socket

import pytest

from transports import RendezvousError
from transports.stream import sockets
from transports.stream.sockets import SELECT_FILES, SPARE_FILES, check_files


def check_on(selector, world_size):
    async def check():
        check_files(world_size)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(check())


@pytest.fixture(autouse=True)
def _many_files(monkeypatch):
    monkeypatch.setattr(sockets.resource, "getrlimit", lambda _: (1 << 20, 1 << 20))


def test_a_loop_over_select_has_room_for_fewer_ranks_than_the_process():
    check_on(selectors.SelectSelector(), SELECT_FILES - SPARE_FILES)
    with pytest.raises(RendezvousError, match=r"ranks: 961, files: 1024"):
        check_on(selectors.SelectSelector(), SELECT_FILES - SPARE_FILES + 1)


def test_another_loop_has_room_for_all_that_the_process_may_open():
    check_on(selectors.DefaultSelector(), 2 * SELECT_FILES)


async def test_a_malformed_name_has_no_address():
    with pytest.raises(OSError, match=r"'a\.\.b' is no name of a host"):
        await sockets.lookup("a..b", 1)


def test_the_text_of_a_failed_look_up_is_the_resolvers():
    assert sockets.system_text(socket.gaierror(socket.EAI_NONAME, "no such name")) == "no such name"
