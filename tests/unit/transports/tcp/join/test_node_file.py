"""The file by which the ranks of one machine meet: private, found while it is needed, and gone afterwards."""

import asyncio
import tempfile

import pytest

from tests.unit.transports.tcp.join.calling import connect
from transports import AuthenticationError, RendezvousError
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.identity import RankIdentity, digest
from transports.tcp.join.meeting_points import LOOPBACK, NodeFile, private_folder
from transports.tcp.join.rendezvous import join_world


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return private_folder()


def config(rank, **changes):
    return TcpConfig(**{"rank": rank, "world_size": 2, "host": LOOPBACK, "port": 5, **changes})


async def test_rank_0_is_found_from_when_it_opens_until_all_have_met(folder):
    here, there = NodeFile(config(0)), NodeFile(config(1))
    assert await there.find() == []
    with await here.listen() as listener:
        assert await there.find() == [listener.getsockname()]
        here.close()
        assert await there.find() == []
    assert list(folder.iterdir()) == []


async def test_a_stale_node_file_is_ignored_and_replaced():
    killed = NodeFile(config(0))
    with await killed.listen():
        stale_bytes = killed._file.read_bytes()
        killed.close()
    killed._file.touch(mode=0o600)
    killed._file.write_bytes(stale_bytes)  # its bytes are there, its lock is not

    here, there = NodeFile(config(0)), NodeFile(config(1))
    assert await there.find() == []
    with await here.listen() as listener:
        assert await there.find() == [listener.getsockname()] and there.shared_key == here.shared_key
        here.close()


async def test_a_rank_0_that_ends_leaves_the_file_of_another_that_replaced_it():
    first, second, there = NodeFile(config(0)), NodeFile(config(0)), NodeFile(config(1))
    with await first.listen(), await second.listen() as listener:
        first.close()
        assert await there.find() == [listener.getsockname()]
        second.close()


@pytest.mark.parametrize("harm", ["others may read it", "a link", "other content"])
async def test_a_file_that_may_be_another_users_is_refused(harm, tmp_path):
    here, there = NodeFile(config(0)), NodeFile(config(1))
    with await here.listen():
        if harm == "a link":
            there._file = tmp_path / "link"
            there._file.symlink_to(here._file)
        elif harm == "other content":
            here._file.write_text("29500")
        else:
            here._file.chmod(0o644)
        with pytest.raises(RendezvousError, match=r"was not left there by rank 0 of this user .*; remove it"):
            await there.find()
        here.close()


async def test_a_process_without_access_to_the_file_is_refused_and_the_ranks_connect():
    configs = [config(rank, wait=20.0) for rank in range(2)]
    points = [NodeFile(each) for each in configs]
    rank_0 = asyncio.create_task(join_world(configs[0], points[0]))
    while not (found := await points[1].find()):  # noqa: ASYNC110 (there is nothing to wait on)
        await asyncio.sleep(0)
    assert points[1]._file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AuthenticationError):
        await connect(found[0], RankIdentity(1, 2, digest(configs[1].run), 5, b""), 0)
    assert not rank_0.done()
    rank_1 = await join_world(configs[1], points[1])
    ends = [await rank_0, rank_1]
    for end in ends:
        for sock in end.values():
            sock.close()
    assert [list(end) for end in ends] == [[1], [0]]


@pytest.mark.parametrize("other", [{"run": "none/1"}, {"port": 6}])
async def test_another_job_of_the_same_user_does_not_find_it(other):
    here = NodeFile(config(0))
    with await here.listen():
        assert await NodeFile(config(1, **other)).find() == []
        here.close()


def test_a_folder_that_others_may_write_into_is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(RendezvousError, match=r"not a private folder.*set TMPDIR"):
        private_folder()


@pytest.mark.parametrize("harm", ["a link", "a link to nothing", "a file"])
def test_what_is_in_place_of_the_folder_is_refused(harm, folder, tmp_path):
    folder.rmdir()
    if harm == "a file":
        folder.touch(mode=0o600)
    else:
        folder.symlink_to(tmp_path / "theirs")
    if harm == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
    with pytest.raises(RendezvousError, match="not a private folder"):
        private_folder()
