"""A trace that cannot be written is told with its name, to all ranks alike."""

import asyncio

import pytest

from pipelined.errors import UsageError
from pipelined.traces.gather import gather_and_write
from pipelined.traces.tracer import Tracer
from transports import open_local


async def test_a_trace_that_cannot_be_written_is_named_on_every_rank(tmp_path):
    path = tmp_path / "absent" / "trace.json"

    async def written(transport):
        with pytest.raises(UsageError, match=f"cannot write the trace to {path} .No such file or directory.; make"):
            await gather_and_write(transport, Tracer(asyncio.get_running_loop().time), path)

    await asyncio.gather(*map(written, open_local("local://", 2)))
