"""The first trainer writes what is trained and the name of the run; a later one must fit both, once training began."""

import asyncio
from dataclasses import dataclass, field
from unittest.mock import ANY

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.errors import UsageError
from pipelined.membership.directory import EmbeddedDirectory, Entry, serve_directory
from pipelined.membership.task_record import RUN, TASK, publish_task
from transports.rpc.virtual.network import VirtualNetwork


@dataclass(frozen=True)
class Voyage:
    port: str
    sails: int = field(default=3, compare=False)

    def pack(self):
        return f"{self.port} {self.sails}".encode()

    @classmethod
    def unpack(cls, data):
        port, sails = data.decode().split()
        return cls(port, int(sails))

    def differences(self, other):
        return f"port {self.port} and {other.port}"


def test_the_run_that_is_to_go_on_is_the_one_of_the_directory():
    async def story():
        network, clock = VirtualNetwork(), VirtualClock()
        async with asyncio.TaskGroup() as tasks, network.endpoint("directory") as end, network.endpoint("one") as one:
            serving = tasks.create_task(serve_directory(end, clock))
            directory = EmbeddedDirectory(one, end.address, clock)
            await publish_task(directory, Voyage("Genoa"), "first")
            await publish_task(directory, Voyage("Genoa"), "first")
            await publish_task(directory, Voyage("Genoa"))
            with pytest.raises(UsageError, match="another run of this training"):
                await publish_task(directory, Voyage("Genoa"), "second")
            with pytest.raises(UsageError, match="Venice and Genoa"):
                await publish_task(directory, Voyage("Venice"), "first")
            assert (await directory.read(RUN)).entries[RUN].value == b"first"
            for port, run in (("Venice", ""), ("Venice", "second")):
                published = await publish_task(directory, Voyage(port), run, begun_key="sailed")
                entries = (await directory.read((TASK, RUN))).entries
                assert entries[TASK] == published == Entry(Voyage(port).pack(), published.revision)
                assert entries[RUN].value != b"first" and entries[RUN].value.decode() == (run or ANY)
            await directory.transact({}, {"sailed": b""})
            assert await publish_task(directory, Voyage("Venice", sails=5), begun_key="sailed") == published
            with pytest.raises(UsageError, match="Genoa and Venice"):
                await publish_task(directory, Voyage("Genoa"), begun_key="sailed")
            with pytest.raises(UsageError, match="another run of this training"):
                await publish_task(directory, Voyage("Venice"), "third", begun_key="sailed")
            serving.cancel()

    run_virtual(story())
