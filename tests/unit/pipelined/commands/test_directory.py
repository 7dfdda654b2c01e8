"""`python -m pipelined directory`: a small process that serves a directory until it is asked to stop."""

import asyncio
import resource
import signal
import subprocess
import sys

import pytest

from pipelined.__main__ import main
from pipelined.aio.clock import RealClock
from pipelined.membership.directory import open_directory
from tests.launching import ROOT
from tests.terminal import closed_over
from transports.rpc import open_endpoint

COMMAND = [sys.executable, "-m", "pipelined", "directory"]
LOADED = """
import sys
from pipelined import __main__
from pipelined.commands import directory
async def imported(*arguments):
    import transports.rpc.tcp.endpoint
    print(*sys.modules)
directory.serve = imported
__main__.main(["directory"])
"""
MAX_OWN, MAX_OF_PIPELINED = 82, 35  # nine of them are the faces of rooms


def test_it_loads_neither_torch_nor_mpi_nor_the_swarm():
    finished = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {*finished.stdout.split()}
    modules = {name for name in loaded if name.partition(".")[0] in ("apps", "pipelined", "collectives", "transports")}
    rooms = {".".join(name.split(".")[:2]) for name in modules}
    assert not loaded & {"torch", "mpi4py", "transports.mpi", "collectives", "apps", "tyro"}
    assert not rooms & {"pipelined.swarm", "pipelined.state", "pipelined.training"}
    assert not modules & {"pipelined.membership.view", "pipelined.membership.messaging"}
    assert len(modules) <= MAX_OWN, sorted(modules)
    assert len([name for name in modules if name.startswith("pipelined")]) <= MAX_OF_PIPELINED, sorted(modules)


def begin(*flags):
    """A running directory, and its address."""
    process = subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return process, process.stdout.readline().split()[-1]


def end(process):
    process.send_signal(signal.SIGTERM)
    with process:
        return process.wait(20)


async def put_and_read(address, **put):
    """Put keys; returns all."""
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        async with open_directory(address, endpoint, RealClock()) as directory:
            if put:
                await directory.transact({}, put)
            return {key: entry.value for key, entry in (await directory.read()).entries.items()}


def test_it_continues_from_its_journal_and_ends_on_sigterm(tmp_path):
    flags = ["--journal", str(tmp_path / "journal")]
    process, address = begin(*flags)
    assert asyncio.run(put_and_read(address, a=b"1")) == {"a": b"1"}
    assert end(process) == 0
    process, address = begin(*flags)
    assert asyncio.run(put_and_read(address)) == {"a": b"1"}
    assert end(process) == 0


def test_it_ends_when_its_terminal_closes():
    assert closed_over(*COMMAND) == 0


@pytest.mark.parametrize(
    "listen, fact", [("nonsense", "unknown endpoint"), ("tcp://0.0.0.0:0", "name the one by which")]
)
def test_an_address_that_cannot_be_is_refused(capsys, listen, fact):
    assert main(["directory", "--listen", listen]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"python -m pipelined directory: error: --listen {listen}") and fact in message


def test_a_full_disk_ends_it_with_the_journal_and_the_remedy(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(SystemExit, match=r"cannot write the journal .*File too large.*free disk space"):
            main(["directory", "--journal", str(tmp_path / "journal")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
