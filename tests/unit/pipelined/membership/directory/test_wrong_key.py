"""A party with another key than the directory's fails at once, not after its time-out."""

import asyncio
from time import monotonic

import pytest

from pipelined.aio.clock import RealClock
from pipelined.membership.directory import WrongKey, open_directory, serve_directory
from transports.rpc import open_endpoint


async def asked_with_another_key(monkeypatch):
    monkeypatch.setenv("PIPELINED_KEY", "theirs")
    async with await open_endpoint("tcp://127.0.0.1:0") as theirs:
        serving = asyncio.ensure_future(serve_directory(theirs, RealClock()))
        monkeypatch.setenv("PIPELINED_KEY", "ours")
        async with await open_endpoint("tcp://127.0.0.1:0") as ours:
            began = monotonic()
            with pytest.raises(WrongKey, match=r"directory at .*another key.*PIPELINED_KEY or PIPELINED_KEY_FILE"):
                await open_directory(theirs.address, ours, RealClock(), patience=1000.0).read()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return monotonic() - began


def test_a_wrong_key_is_reported_at_once(monkeypatch):
    assert asyncio.run(asked_with_another_key(monkeypatch)) < 500.0
