"""The status of a swarm for people, programs and Prometheus."""

import asyncio
import json
import random
import socket
import tracemalloc
from contextlib import ExitStack, suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from apps.common.flags.command_flags import ShowFlags
from apps.common.status_page import web as common
from apps.common.status_page.show import show
from apps.common.status_page.web import MAX_CONNECTIONS, to_json
from apps.swarm.status.prometheus import metrics
from apps.swarm.status.table import SWARM
from pipelined.errors import UsageError
from tests.unit.pipelined.swarm.status.samples import peer, status, trainer

STATUS = status()


def page(seen):
    return common.page(SWARM, seen)


def Web(port):
    return common.Web(port, SWARM)


def test_what_was_never_evaluated_is_no_metric_and_null():
    seen = status(eval_loss=None, eval_step=None)
    assert "eval" not in metrics(seen.to_dict()) and "eval" not in page(seen)
    assert json.loads(to_json(seen.to_dict()))["eval_loss"] is None


def test_the_age_of_a_status_is_shown():
    past = status(age_s=12.0)
    assert "directory does not reply; 12 s ago: after 3 of 9 steps, loss 1.5" in page(past)
    assert "answer" not in page(status(age_s=1.0)) and "640 tokens/s" in page(STATUS)
    assert "swarm_look_age_seconds 12.0" in metrics(past.to_dict())


def test_a_swarm_that_is_done_says_so():
    done = page(status(steps=3, waits_for=""))
    assert "after all 3 steps, loss 1.5" in done and "led by" not in done
    assert "led by" in page(status(steps=3, waits_for="the evaluation"))


def test_names_are_shown_as_they_are_whatever_they_mean_elsewhere():
    name = "[/red][bold]<b>"
    shown = page(status(leader=name, peers=[peer(name)], trainers=[trainer(name)]))
    assert shown.count("[/red][bold]&lt;b&gt;") == 3


def test_json_has_no_numbers_that_are_none():
    told = json.loads(to_json(STATUS.to_dict()))
    assert told["peers"][0]["share"] is None and told["trainers"][0]["banned"] == {"tcp://x:1": 4.0}


def test_a_port_in_use_is_refused_in_one_line():
    with Web(0) as web:
        port = web.address.split(":")[-1].rstrip("/")
        with pytest.raises(UsageError, match=rf"--web cannot listen on port {port} \(Address already in use\); name"):
            Web(int(port))


@pytest.mark.parametrize(
    ("flags", "lines"), [(ShowFlags(json=True), 1), (ShowFlags(json=True, watch=True), 2), (ShowFlags(watch=True), 0)]
)
def test_json_is_one_object_and_with_watch_one_for_each_look(flags, lines, capsys):
    async def looks():
        yield STATUS
        yield STATUS

    asyncio.run(show(flags, looks(), SWARM))
    shown = capsys.readouterr().out.splitlines()
    objects = [json.loads(line) for line in shown if line.startswith("{")]
    assert [found["step"] for found in objects] == [3] * lines and (len(shown) == lines or not flags.json)


def test_a_wait_for_the_directory_is_said_on_stderr(capsys, monkeypatch):
    monkeypatch.setattr("pipelined.process.reporting.progress.MOMENT_S", 0.0)
    said = list[str]()

    async def looks():
        async with asyncio.timeout(10.0):
            while not said:
                await asyncio.sleep(0)
                said.extend(capsys.readouterr().err.splitlines())
        yield STATUS

    asyncio.run(show(ShowFlags(json=True), looks(), SWARM))
    assert said == ["waits for the directory"]


def test_the_page_shows_the_last_look_and_takes_nothing_else():
    with Web(0) as web:
        with pytest.raises(HTTPError, match="503"):
            urlopen(web.address)
        web.last = STATUS
        page = urlopen(web.address).read().decode()
        assert "eval 1.2500 after 2 steps" in page
        assert "waits for a peer of stage 0" in page and "bans tcp://x:1" in page
        assert json.loads(urlopen(f"{web.address}status.json").read())["step"] == 3
        assert "swarm_step 3" in urlopen(f"{web.address}metrics").read().decode()
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{web.address}../etc/passwd")


@pytest.mark.parametrize("path", ["", "status.json", "metrics"])
def test_a_probe_gets_the_head_of_a_page_without_its_body(path):
    with Web(0) as web:
        web.last = STATUS
        page, probe = (urlopen(Request(web.address + path, method=method)) for method in ("GET", "HEAD"))
        assert probe.headers.items()[2:] == page.headers.items()[2:], "they differ beyond server and date"
        assert page.read() and not probe.read() and not web.rejected


HOSTILE = {
    "noise": (random.Random(0).randbytes(200) + b"\r\n\r\n", "Bad Request"),
    "no version of HTTP": (b"GET / HTTP/9x\r\n\r\n", "Bad Request"),
    "a newer version": (b"GET / HTTP/2.0\r\n\r\n", "HTTP Version Not Supported"),
    "an endless line": (b"GET /" + b"a" * (1 << 17), "Request-URI Too Long"),
    "a long header": (b"GET / HTTP/1.1\r\nx: " + b"a" * (1 << 17), "Request Header Fields Too Large"),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 2000 + b"\r\n", "Request Header Fields Too Large"),
    "a body": (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "Not Implemented"),
    "the name of another site": (b"GET /status.json HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", "Misdirected Request"),
    "a host that is no address": (b"GET / HTTP/1.1\r\nHost: [::\r\n\r\n", "Misdirected Request"),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "Misdirected Request"),
    "another path": (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "Not Found"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_requests_are_turned_away_by_name_and_the_page_stays(case):
    said, name = HOSTILE[case]
    with Web(0) as web:
        web.last = STATUS
        with socket.create_connection(("127.0.0.1", int(web.address.split(":")[2][:-1]))) as sock:
            with suppress(OSError):  # it may have hung up by any of these
                sock.sendall(said)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
        told = json.loads(urlopen(f"{web.address}status.json").read())
        assert told["step"] == 3 and told["web_rejected"] == {name: 1} == dict(web.rejected)
        assert f'swarm_web_rejected_total{{reason="{name}"}} 1.0' in urlopen(f"{web.address}metrics").read().decode()


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "127.0.0.1", "127.1.2.3:80", "[::1]:8000"])
def test_every_name_of_the_loopback_interface_is_served(host):
    with Web(0) as web:
        web.last = STATUS
        assert urlopen(Request(f"{web.address}status.json", headers={"Host": host})).status == 200


def test_a_caller_by_another_name_is_reported_which_address_to_open():
    with Web(0) as web:
        web.last = STATUS
        with pytest.raises(HTTPError, match="421") as refused:
            urlopen(Request(web.address, headers={"Host": "machine.example"}))
        assert b"open http://127.0.0.1:PORT/" in refused.value.read()


def test_callers_that_say_nothing_are_few_and_take_no_memory():
    tracemalloc.start()
    try:
        with Web(0) as web, ExitStack() as stack:
            web.last = STATUS
            port = int(web.address.split(":")[2][:-1])
            socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(64)]
            for sock in socks[MAX_CONNECTIONS:]:
                with suppress(ConnectionError):
                    assert sock.recv(1) == b"", "one too many was kept"
            assert web.rejected["too many callers"] > 0
            for sock in socks:
                sock.close()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
