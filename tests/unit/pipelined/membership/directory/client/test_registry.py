"""A directory's URL says which kind it is, and one that says nothing is refused with what is known."""

import asyncio
import gc
import weakref

import pytest

from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.directory import EmbeddedDirectory, open_directory
from pipelined.membership.directory.client.etcd.url import EtcdAddress
from transports.rpc.virtual.network import VirtualNetwork


class Deaf:
    """An endpoint that is never asked."""

    def add_lost_callback(self, hear):
        pass

    def handle(self, topic, handler):
        pass


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:7000", "virtual://directory"])
def test_an_address_opens_an_embedded_directory(url):
    assert isinstance(open_directory(url, Deaf(), RealClock()), EmbeddedDirectory)


def test_a_closed_directory_is_forgotten_by_its_endpoint():
    async def main():
        endpoint = VirtualNetwork().endpoint("a")
        async with open_directory("virtual://directory", endpoint, RealClock()) as directory:
            reference = weakref.ref(directory)
        del directory
        gc.collect()
        assert reference() is None

    asyncio.run(main())


@pytest.mark.parametrize(("url", "remedy"), [("http://a", ""), ("a:7000", "write tcp://a:7000; "), ("", "")])
def test_an_unknown_kind_lists_the_known(url, remedy):
    with pytest.raises(UsageError, match=rf"unknown directory '{url}'; {remedy}known: etcd://, tcp://$"):
        open_directory(url, Deaf(), RealClock())


def test_without_its_package_etcd_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pipelined.membership.directory.client.etcd.client", None)
    with pytest.raises(UsageError, match=r"pip install 'pipelined\[etcd\]'"):
        open_directory("etcd://a", Deaf(), RealClock())


@pytest.mark.parametrize(
    "url, place",
    [
        ("etcd://a", EtcdAddress(("a:2379",))),
        ("etcd://a,b:1,[::1],[::1]:2", EtcdAddress(("a:2379", "b:1", "[::1]:2379", "[::1]:2"))),
        ("etcd://a/my/swarm/", EtcdAddress(("a:2379",), "my/swarm")),
        ("etcd://u:p%40s@a,b", EtcdAddress(("a:2379", "b:2379"), user="u", password="p@s")),
        ("etcd://a?ca=/c&cert=d&key=e", EtcdAddress(("a:2379",), ca="/c", cert="d", key="e")),
    ],
)
def test_a_cluster_is_read_from_its_url(url, place):
    assert EtcdAddress.parse(url) == place


@pytest.mark.parametrize(
    "url, fact",
    [
        ("etcd://", "no etcd cluster in 'etcd://'; write etcd://HOST"),
        ("etcd://a,", "no host before a comma"),
        ("etcd://a:b", "no such port"),
        ("etcd://a:99999", "no such port"),
        ("etcd://u:secret@a?tls=yes", r"unknown option 'tls' in etcd://a\?tls=yes; known: ca, cert, key"),
        ("etcd://a?cert=c", "no etcd cluster"),
        ("etcd://a?ca=/nowhere.pem", None),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(url, fact):
    with pytest.raises(UsageError, match=fact or r"cannot speak TLS with these files .*/nowhere.pem\); give PEM"):
        EtcdAddress.parse(url).tls()
