"""A process listens where the other members of its swarm can reach it."""

import re
import socket
from functools import partial

import pytest

from pipelined.errors import UsageError
from pipelined.membership.addresses import check_directory_url, described, listen_url
from pipelined.membership.connection import connected
from pipelined.membership.directory.client.etcd.url import EtcdAddress
from pipelined.membership.directory.client.registry import require_kind

REMOTE, LOCAL = "tcp://10.99.0.1:4700", "tcp://10.99.0.2:0"


@pytest.fixture
def routed(monkeypatch):
    """A machine with the address 10.99.0.2 in the network of 10.99.0.1; loopback is loopback."""

    class Probe:
        def __init__(self, kind, type):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def connect(self, address):
            self._name = ("127.0.0.1" if address[0].startswith("127.") else "10.99.0.2", 1)

        def getsockname(self):
            return self._name

    monkeypatch.setattr(socket, "socket", Probe)


@pytest.mark.parametrize(
    "url, mine",
    [
        ("tcp://127.0.0.1:4700", "tcp://127.0.0.1:0"),
        ("tcp://[::1]:1", "tcp://[::1]:0"),
        ("etcd://me:secret@127.0.0.1:1,10.0.0.7:2/x", "tcp://127.0.0.1:0"),
        ("etcd://me:secret@127.0.0.1:1/team@nowhere.invalid", "tcp://127.0.0.1:0"),
        ("virtual://directory", "tcp://127.0.0.1:0"),
    ],
)
def test_a_process_listens_at_the_address_from_which_it_reaches_the_directory(url, mine):
    assert listen_url(url, None) == mine


def test_by_default_a_member_listens_where_other_machines_can_connect(routed):
    assert listen_url(REMOTE, None) == LOCAL


def test_a_loopback_address_is_refused_if_the_swarm_is_on_another_machine(routed):
    with pytest.raises(UsageError, match=r"cannot connect to --listen tcp://127\.0\.0\.1:0 .*such as 10\.99\.0\.2"):
        listen_url(REMOTE, "tcp://127.0.0.1:0")


@pytest.mark.parametrize("coordinator", ["tcp://127.0.0.1:4700", "tcp://10.99.0.2:4700"])
def test_a_loopback_address_is_accepted_beside_the_directory(routed, coordinator):
    listen = "tcp://127.0.0.1:0?delay=50ms"
    assert listen_url(coordinator, listen) == listen


@pytest.mark.parametrize("url", ["tcp://nowhere.invalid:1", "tcp://a..b:4700", "tcp://[::1:4700", "etcd://[::1"])
@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_a_directory_at_a_host_without_an_address_is_refused(url, listen):
    with pytest.raises(UsageError, match=re.escape(f"cannot reach the directory at {url} (")):
        listen_url(url, listen)


@pytest.mark.parametrize("url", ["tcp://[::1:4700", "tcp://::1:4700", "tcp://[]:4700", "tcp://a"])
def test_an_address_without_a_host_and_a_port_is_refused(url):
    with pytest.raises(UsageError, match=re.escape(f"--coordinator {url} is no address; write tcp://HOST:PORT")):
        check_directory_url(url, "--coordinator")


@pytest.mark.parametrize("url", ["tcp://[::1]:4700", "tcp://a.b:4700", "tcp://127.0.0.1:4700", "etcd://[::1"])
def test_a_host_and_a_port_are_accepted_and_other_schemes_are_not_examined(url):
    check_directory_url(url, "--coordinator")


@pytest.mark.parametrize(
    ("listen", "remedy"), [("tcp://[::1", "write tcp://HOST:PORT"), ("tcp://a..b:0", "cannot listen")]
)
async def test_a_malformed_address_to_listen_at_is_refused_with_a_remedy(listen, remedy):
    with pytest.raises(UsageError, match=rf"--listen {re.escape(listen)}: .*{remedy}"):
        async with connected("tcp://127.0.0.1:1", listen):
            pass


@pytest.mark.parametrize("password", ["secret", "se/cret", "s@cret"])
def test_the_description_of_a_directory_has_no_password(password):
    assert described(f"etcd://me:{password}@a:1,b:2/x") == "the directory at etcd://a:1,b:2/x"


def test_no_error_of_a_directory_has_its_password():
    check = partial(check_directory_url, argument="--coordinator")
    schemes = {partial(listen_url, listen=None): "etcd", EtcdAddress.parse: "etcd", require_kind: "", check: "tcp"}
    for refuse, scheme in schemes.items():
        with pytest.raises(UsageError) as refused:
            refuse(f"{scheme}://joe:se/cret℀@[host.invalid")
        assert not re.search("joe|se/|'se'|cret", str(refused.value))
