"""The file by which the ranks of one machine meet: private, found while it is needed, and gone afterwards."""

import asyncio
import tempfile

import pytest

from transports import RendezvousError
from transports._node_file import LOOPBACK, NodeFile, private_folder
from transports._place import Place


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return private_folder()


def place(rank, **changes):
    return Place(**{"rank": rank, "world_size": 2, "host": LOOPBACK, "port": 5, **changes})


def test_rank_0_is_found_from_when_it_opens_until_all_have_met(folder):
    async def meet():
        here, there = NodeFile(place(0)), NodeFile(place(1))
        assert await there.find() == []
        with await here.open() as listener:
            assert await there.find() == [listener.getsockname()]
            here.close()
            assert await there.find() == []

    asyncio.run(meet())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("other", [{"run": "none/1"}, {"port": 6}])
def test_another_job_of_the_same_user_does_not_find_it(other):
    async def meet():
        with await NodeFile(place(0)).open():
            assert await NodeFile(place(1, **other)).find() == []

    asyncio.run(meet())


def test_a_folder_that_others_may_write_into_is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(RendezvousError, match=r"not a private folder.*set TMPDIR"):
        private_folder()


def test_a_link_in_place_of_the_folder_is_refused(folder, tmp_path):
    folder.rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(RendezvousError, match="not a private folder"):
        private_folder()
