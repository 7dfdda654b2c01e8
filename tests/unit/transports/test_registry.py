"""URLs: the scheme names the transport, and an unknown one lists the known."""

import asyncio
import re
import subprocess
import sys

import pytest

import transports
from transports import new_event_loop, open_local, open_transport, read_url, schemes


@pytest.mark.parametrize("url", ["carrier-pigeon://roof", "", "_wire://", "local"])
def test_an_unknown_scheme_lists_the_known(url):
    with pytest.raises(ValueError, match=r"known: .*local://.*mpi://"):
        asyncio.run(open_transport(url))


@pytest.mark.parametrize("url", ["local://host", "local://?size=3", "local://?delay=1ms&size=3", "mpi://host"])
def test_a_url_with_unknown_parts_is_refused_and_they_are_named(url):
    with pytest.raises(ValueError, match=r"no host .* \(got: '(host|\?size=3)'\)"):
        asyncio.run(open_transport(url))


def test_an_option_that_only_endpoints_take_is_not_offered():
    with pytest.raises(ValueError, match=r"but delay, jitter, rate, loss, seed, node, far-delay, far-rate \("):
        asyncio.run(open_transport("local://?wait=3"))


@pytest.mark.parametrize("url", ["local://#x", "mpi://?wait=5#x", "tcp://host:5#x"])
def test_a_fragment_is_refused(url):
    with pytest.raises(ValueError, match=r"takes .* \(got: '.*#x'\)"):
        asyncio.run(open_transport(url))


def test_a_malformed_host_is_refused_with_the_form_of_an_address():
    with pytest.raises(ValueError, match=r"no transport in 'tcp://\[::1' \(Invalid IPv6 URL\); write tcp://HOST:PORT"):
        asyncio.run(open_transport("tcp://[::1"))


@pytest.mark.parametrize("wait", ["0", "-1", "long", "nan", "", "2000000"])
def test_a_wait_for_the_ranks_of_mpi_that_is_no_time_is_refused(wait):
    fact = rf"\?wait= takes seconds, more than 0 and less than 1000000 \(got: '{wait}'\)"
    with pytest.raises(ValueError, match=rf"{fact}; write mpi://\?wait=300"):
        asyncio.run(open_transport(f"mpi://?wait={wait}"))


@pytest.mark.parametrize("scheme", schemes(), ids="{}://".format)
def test_invalid_link_options_list_the_allowed_values(scheme):
    with pytest.raises(ValueError, match=r"\?delay= takes a number and one of the units us, ms, s"):
        asyncio.run(open_transport(f"{scheme}://?delay=soon"))


@pytest.mark.parametrize("scheme", schemes(), ids="{}://".format)
def test_ranks_share_no_line(scheme):
    with pytest.raises(ValueError, match=r"line= is only for endpoints \(url: '.*line=1mbit'\); limit .* rate="):
        asyncio.run(open_transport(f"{scheme}://?line=1mbit"))


def test_a_url_is_parsed_once_and_taken_part_by_part():
    url = read_url("tcp://host:29500?wait=60&delay=50ms&unix=no")
    assert (url.scheme, url.host, url.port, url.links.delay) == ("tcp", "host", 29500, pytest.approx(0.05))
    assert url.seconds("wait", 1.0) == 60.0
    with pytest.raises(ValueError, match=r"unknown option in the tcp:// URL \(got: unix; known: wait, delay"):
        url.check_all_taken(host=True)
    assert not url.switch("unix") and url.option("listen") is None
    url.check_all_taken(host=True)
    assert read_url("tcp://host:29500?wait=60").links is None


async def test_a_local_world_may_be_slowed():
    ends = open_local("local://?delay=1us", 3)
    assert [(end.rank, type(end).__name__) for end in ends] == [
        (0, "SlowTransport"),
        (1, "SlowTransport"),
        (2, "SlowTransport"),
    ]
    with pytest.raises(ValueError, match="no options but delay"):
        open_local("local://?size=3", 3)


@pytest.mark.parametrize("url", ["tcp://", "mpi://?delay=1ms"])
def test_ranks_of_one_process_need_the_scheme_local(url):
    with pytest.raises(ValueError, match=rf"need local:// \(got: '{re.escape(url)}'\)"):
        open_local(url, 2)


async def test_local_is_a_world_of_one():
    async with await open_transport("local://") as end:
        assert (end.rank, end.world_size) == (0, 1)
        send = asyncio.ensure_future(end.send(0, ("k",), b"self"))
        assert bytes((await end.receive(None, ("k",))).blocks[0].data) == b"self"
        await send


def test_nothing_heavy_is_imported():
    names = "transports, transports.local, transports.tcp.transport, transports.mpi.opening"
    code = f"import sys, {names}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "transports.mpi.opening" in modules
    assert not {"torch", "mpi4py.MPI", "collectives", "pipelined"} & set(modules)


def test_a_missing_library_is_named_with_its_remedy():
    code = """if True:
        import asyncio, sys, types
        broken = types.ModuleType("mpi4py"); broken.rc = types.SimpleNamespace(); sys.modules["mpi4py"] = broken
        from transports import RendezvousError, open_transport
        try:
            asyncio.run(open_transport("mpi://"))
        except RendezvousError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pipelined[mpich]'" in done.stdout


def test_timers_of_the_loop_are_finer_than_a_millisecond():
    loop = new_event_loop()
    try:
        assert type(loop._selector).__name__ == "SelectSelector"
    finally:
        loop.close()


def test_the_package_has_every_name_of_its_all():
    assert all(hasattr(transports, name) for name in transports.__all__)
