"""A process listens where the other members of its swarm can reach it."""

import socket

import pytest

from pipelined.errors import UsageError
from pipelined.membership.addresses import described, listen_url

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


def test_a_name_without_an_address_is_refused():
    with pytest.raises(UsageError, match=r"cannot reach nowhere\.invalid"):
        listen_url("tcp://nowhere.invalid:1", None)


def test_the_description_of_a_directory_has_no_password():
    assert described("etcd://me:secret@a:1,b:2/x") == "the directory at etcd://a:1,b:2/x"
