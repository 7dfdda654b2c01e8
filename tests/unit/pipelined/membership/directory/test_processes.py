"""A directory over TCP while its processes are killed and stopped."""

import asyncio
import signal
import socket
import sys
from contextlib import asynccontextmanager

from pipelined.aio.clock import RealClock
from pipelined.membership.directory import open_directory
from tests.launching import started
from transports.rpc import open_endpoint


def process(*role):
    """A process in this role; it is killed at the end."""
    return started([sys.executable, "-m", "tests.unit.pipelined.membership.directory.processes", *role])


def free_url():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def client(url):
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        yield open_directory(url, endpoint, RealClock())


async def until(watching, kind):
    """Wait until the key is put (True) or gone (False)."""
    async for changes in watching:
        if bool(changes[-1].entry) == kind:
            return changes[-1].revision


def test_what_a_killed_directory_answered_is_there_when_it_is_back(memory_path):
    url, counted = free_url(), 60

    async def count(directory, reached):
        revision = 0
        for number in range(1, counted + 1):
            revision = await directory.transact({"n": revision}, {"n": b"%d" % number})
            reached.put_nowait(number)

    async def watch(directory):
        numbers = []
        async for changes in directory.watch("n", 0):
            numbers += [int(change.entry.value) for change in changes]
            if numbers[-1] == counted:
                return numbers

    async def main():
        reached = asyncio.Queue()
        serve = ("serve", url, memory_path / "journal")
        async with client(url) as one, client(url) as other, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch(other))
            counting = tasks.create_task(count(one, reached))
            for number in (20, 40):
                with process(*serve):
                    while await reached.get() < number:
                        pass
            with process(*serve):
                await counting
                assert await watching == list(range(1, counted + 1))

    asyncio.run(main())


def test_a_killed_process_is_removed_and_a_stopped_one_finds_out(memory_path):
    url = free_url()

    async def main():
        async with client(url) as directory:
            watching = directory.watch("held", 0)
            with process("hold", url, 3600) as holder:
                await until(watching, True)
                holder.kill()
                await until(watching, False)
            with process("hold", url, 0.5) as holder:
                await until(watching, True)
                holder.send_signal(signal.SIGSTOP)
                await until(watching, False)
                holder.send_signal(signal.SIGCONT)
                assert (await asyncio.to_thread(holder.communicate))[0] == "lost\n"

    with process("serve", url, memory_path / "journal"):
        asyncio.run(main())
