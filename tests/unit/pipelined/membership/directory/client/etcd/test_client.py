"""What an etcd cluster adds: members that die, lost replies, compacted changes, and access."""

import asyncio
import shutil
import subprocess
from functools import partial

import pytest

from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.directory import Change, Conflict, CutOff, Entry, FellBehind, open_directory
from tests.absent import absent
from tests.etcd_cluster import EtcdCluster, needs_etcd

httpx2 = pytest.importorskip("httpx2", reason="no httpx2 here; pip install 'pipelined[etcd]'")

from pipelined.membership.directory.client.etcd import gateway as etcd_gateway  # noqa: E402
from pipelined.membership.directory.client.etcd.exactly_once import Marks  # noqa: E402
from pipelined.membership.directory.client.etcd.gateway import Gateway  # noqa: E402
from pipelined.membership.directory.client.etcd.messages import Keys  # noqa: E402
from pipelined.membership.directory.client.etcd.url import EtcdAddress  # noqa: E402


class Losing(httpx2.AsyncHTTPTransport):
    """Of three answers loses two, after the member has done what it was asked."""

    answered = lost = 0

    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        self.answered += 1
        if self.answered % 3:
            self.lost += 1
            await response.aread()
            await response.aclose()
            raise httpx2.ReadError("lost")
        return response


def client(url, **options):
    return open_directory(url, None, RealClock(), **options)


async def test_what_was_done_although_its_answer_was_lost_is_done_once(etcd, monkeypatch):
    losing = Losing()

    url = etcd.url("losing")
    async with client(url) as plain:
        with monkeypatch.context() as patched:
            patched.setattr(etcd_gateway.httpx2, "AsyncClient", partial(httpx2.AsyncClient, transport=losing))
            directory = client(url)
        lease = await directory.grant(60.0)
        before = (await plain.read()).revision
        told = [await directory.transact({f"k{n}": 0}, {f"k{n}": b""}, lease=lease) for n in range(6)]
        with pytest.raises(Conflict):
            await directory.transact({"k0": 0}, {"k0": b""})
        assert told == list(range(before + 1, before + 7))
        assert (await plain.read()).entries == {f"k{n}": Entry(b"", told[n], lease.number) for n in range(6)}
        await lease.revoke()
        await directory.close()
    assert losing.lost >= 2 * 6


def test_nothing_is_lost_when_a_member_is_killed(etcd):
    async def main():
        url = etcd.url("killed")
        async with client(url) as one, client(url) as other:
            start = (await one.read()).revision
            told = {}

            async def write():
                for number in range(40):
                    key = f"k{number}"
                    told[key] = await one.transact({key: 0}, {key: b""})
                    if number == 10:
                        etcd.kill(0)

            async def watch():
                history = []
                async for changes in other.watch("", start):
                    history += changes
                    if len(history) == 40:
                        return history

            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch())
                tasks.create_task(write())
            assert watching.result() == [Change(key, Entry(b"", at), at) for key, at in told.items()]
            assert {key: entry.revision for key, entry in (await other.read()).entries.items()} == told

    try:
        asyncio.run(main())
    finally:
        etcd.start(0)


async def test_a_transaction_that_was_given_up_does_not_disturb_the_next(etcd):
    async with client(etcd.url("given-up")) as directory:
        for moment in range(12):
            asking = asyncio.create_task(directory.transact({}, {"a": b"%d" % moment}))
            for _ in range(moment * 4):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            revision = await directory.transact({}, {"b": b"%d" % moment})
            assert (await directory.read("b")).entries == {"b": Entry(b"%d" % moment, revision)}


async def test_a_mark_that_died_is_left_anew(etcd):
    gateway = Gateway(EtcdAddress.parse(etcd.url("marks")), RealClock(), 30.0)
    marks, keys = Marks(gateway, RealClock(), "marks.marks/"), Keys("marks/")
    first, _ = await marks.transact([], [keys.put("a", b"", 0)], [])
    await marks.close()
    second, _ = await marks.transact([], [keys.put("a", b"", 0)], [])
    assert second == first + 2  # the mark was taken away between them
    await marks.close()
    await gateway.close()


async def test_a_watcher_behind_the_compaction_must_read_again(etcd):
    place = EtcdAddress.parse(etcd.url("compacted"))
    gateway = Gateway(place, RealClock(), 30.0)
    async with client(etcd.url("compacted")) as directory:
        first = await directory.transact({}, {"a": b""})
        last = await directory.transact({}, {"a": b""})
        await gateway.call("kv/compaction", {"revision": str(last)})
        with pytest.raises(FellBehind, match=rf"from revision {last} on \(after: {first - 1}\)"):
            await anext(directory.watch("", first - 1))
    await gateway.close()


async def test_a_cluster_that_is_not_there_is_cut_off():
    nowhere = "etcd://127.0.0.1:1,127.0.0.1:2"
    async with client(nowhere, patience=0.1) as directory:
        for call in (directory.read(), directory.transact({}, {"a": b""}), anext(directory.watch("", 0))):
            with pytest.raises(CutOff, match=r"etcd://127.0.0.1:1,127.0.0.1:2 does not reply \(seconds: 0.1, last: "):
                await call
        await directory.close()
        with pytest.raises(CutOff, match=r"was closed here"):
            await directory.read()


@pytest.fixture
def certificate(memory_path):
    """A key, and a certificate for this machine signed with it."""
    if shutil.which("openssl") is None:
        absent("no openssl here to make a certificate with; apt-get install openssl")
    names = [str(memory_path / name) for name in ("key.pem", "certificate.pem")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=etcd"]
    subject = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", names[0], "-out", names[1]]
    subprocess.run(["openssl", "req", "-x509", *kind, *subject], check=True, capture_output=True)
    return names


def test_a_cluster_with_users_and_tls_accepts_a_password(certificate, memory_path):
    needs_etcd()
    key, ca = certificate

    async def lock(gateway):
        """Give access to root alone."""
        await gateway.call("auth/user/add", {"name": "root", "password": "a:b@c"})
        await gateway.call("auth/role/add", {"name": "root"})
        await gateway.call("auth/user/grant", {"user": "root", "role": "root"})
        await gateway.call("auth/enable", {})

    async def main(cluster):
        location = cluster.url("locked").removeprefix("etcd://") + f"?ca={ca}"
        gateway = Gateway(EtcdAddress.parse(f"etcd://{location}"), RealClock(), 30.0)
        await lock(gateway)
        await gateway.close()
        async with client(f"etcd://root:a%3Ab%40c@{location}") as directory:
            revision = await directory.transact({}, {"a": b"1"})
            assert (await directory.read()).entries == {"a": Entry(b"1", revision)}
            assert await anext(directory.watch("", revision - 1)) == [Change("a", Entry(b"1", revision), revision)]
        for login in ("", "root:wrong@"):
            async with client(f"etcd://{login}{location}") as directory:
                with pytest.raises(UsageError, match=r"rejects this client.*give its user and password"):
                    await directory.read()

    with EtcdCluster(memory_path, 1, tls=(key, ca)) as cluster:
        asyncio.run(main(cluster))
