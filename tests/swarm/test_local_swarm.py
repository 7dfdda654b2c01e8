"""`python -m apps.swarm local`: what it shows agrees, a killed peer is survived, and it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from select import select
from time import monotonic
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.launching import ROOT

SIZES = "--stages 2 --layers 2 --d-model 32 --heads 2 --seq 16 --batch 4 --microbatch 2 --steps 100000 --lease 3"
SWARM = [sys.executable, "-u", "-m", "pipelined.apps.swarm"]


def read_until(process, wanted):
    """Lines that the swarm prints, up to one that holds this."""
    lines = []
    while not lines or wanted not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before it said {wanted!r}: {lines}"
    return lines


def children(pid):
    """Command lines of a process's children, by process id."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(pid): Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids}


def spare(peers):
    """The name of a peer with another one at its stage: the last peer's death would lose the stage."""
    stages = [peer["stage"] for peer in peers]
    return next(peer["name"] for peer in peers if stages.count(peer["stage"]) > 1)


def agree(look, told):
    """A look at the swarm, and what a trainer wrote of each step."""
    (line,) = [line for line in told if line["step"] == look["step"] - 1]
    assert (line["loss"], line["grad_norm"]) == (look["loss"], look["norm"])


def shown(page):
    """What the page shows as JSON, and the same look with the numbers that Prometheus gets."""
    deadline = monotonic() + 40.0
    while True:
        with suppress(HTTPError):  # before the first look the page has no numbers
            look, metrics = (urlopen(f"{page}{name}").read().decode() for name in ("status.json", "metrics"))
            break
        assert monotonic() < deadline
    look, numbers = json.loads(look), dict(line.rsplit(" ", 1) for line in metrics.splitlines())
    return look, {**look, **{name: float(numbers[f"swarm_{name}"]) for name in ("step", "loss", "norm")}}


@pytest.mark.in_turns(4)
def test_what_it_shows_agrees_a_killed_peer_is_survived_and_nothing_is_left(tmp_path):
    path, temporary = tmp_path / "metrics", tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "apps").mkdir()  # a package of the user's own, in the directory in which the swarm starts
    (tmp_path / "apps" / "__init__.py").touch()
    words = [*SWARM, "local", "--peers", "3", *SIZES.split(), "--metrics", str(path)]
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as swarm:
        try:
            address = read_until(swarm, "coordinator at")[-1].split()[2].rstrip(";")
            read_until(swarm, "step 2:")
            words = [*SWARM, "status", "--coordinator", address, "--json", "--web", "0"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as status:
                page = read_until(status, "page at")[-1].split()[-1]
                looks = [json.loads(read_until(status, "{")[-1]), *shown(page)]
                status.send_signal(signal.SIGINT)
            everyone = children(swarm.pid)
            ends = [os.pidfd_open(pid) for pid in everyone]
            name = spare(looks[0]["peers"])
            (doomed,) = [pid for pid, command in everyone.items() if name in command]
            os.kill(doomed, signal.SIGKILL)
            assert read_until(swarm, "SIGKILL")[-1].startswith(f"{name} (pid {doomed}, stage ")
            read_until(swarm, "peers 1+1")  # after the death: the first steps may have had two peers as well
            swarm.send_signal(signal.SIGINT)
            read_to_end = swarm.stdout.read()
        finally:
            swarm.terminate()
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in told] == list(range(len(told)))
    for look in looks:
        agree(look, told)
        assert [len(look["peers"]), look["stages"], look["waits_for"]] == [3, 2, ""]
    assert swarm.returncode == 130 and "Traceback" not in read_to_end
    assert all(select([end], [], [], 40.0)[0] for end in ends), "children are left"
    for end in ends:
        os.close(end)
    assert not list(temporary.glob("swarm-*")), "files are left"


@pytest.mark.in_turns(2)
def test_a_coordinator_that_fails_ends_it_all(tmp_path):
    journal = tmp_path / "journal"
    journal.write_text("this is none")
    done = subprocess.run([*SWARM, "local", "--journal", journal], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is no journal" in done.stderr and done.stderr.count("error: ") == 1
