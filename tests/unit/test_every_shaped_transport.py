"""Over slow links, on the virtual clock, a transport keeps every clause that it keeps without them."""

import asyncio
import inspect

import pytest

from tests.conformance.clauses import EVERYWHERE, WHERE_RANKS_DIE, hold
from tests.conformance.neighbours import public
from transports import Transport
from transports.emulation.transport import SlowTransport
from transports.local import world
from transports.urls import split_profile

CLAUSES = {**EVERYWHERE, **WHERE_RANKS_DIE}
QUERIES = ["delay=5ms", "delay=50ms&jitter=50ms&rate=500mbit&loss=0.1&seed=3"]


@pytest.mark.virtual
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("clause", CLAUSES)
async def test_clause(clause, query):
    shape, _ = split_profile(query)

    await hold([SlowTransport(end, shape) for end in world(3)], CLAUSES[clause], seconds=1e4)


UNDELAYABLE = {"open_native", "open_shared"}
OWN = {"rank", "world_size", "traffic", "next_serial", *UNDELAYABLE}
"""Members of the contract that a slowed end does not ask of its inner end at each use."""
ARGUMENTS = {
    "peer": 0,
    "key": ("k",),
    "channel": 0,
    "buffer": memoryview(bytearray(4)),
    "reason": "why",
    "code": 1,
    "busy": True,
}


def noting(asked):
    """A transport of one rank that notes which of its members are asked for."""

    class Noting(Transport):
        def __getattribute__(self, name):
            asked.add(name)
            return super().__getattribute__(name)

        nodes, aborts_as_one = (7,), True
        abort_job = staticmethod(lambda code: None)
        probe = staticmethod(lambda peer, key: False)

        async def _done(self, *arguments, **named):
            pass

        send = receive = send_buffer = receive_buffer = abort = close = _done

    return Noting(0, 1)


@pytest.mark.parametrize("name", sorted(public(Transport) - OWN))
@pytest.mark.virtual
async def test_every_public_member_of_the_contract_reaches_the_slowed_transport(name):
    asked = set()

    end = SlowTransport(noting(asked), split_profile("delay=5ms")[0])
    asked.clear()
    member = getattr(end, name)
    if inspect.ismethod(member):
        arguments = inspect.signature(getattr(Transport, name)).parameters
        called = member(*[ARGUMENTS[word] for word in arguments if word in ARGUMENTS])
        await asyncio.gather(called, return_exceptions=True) if inspect.isawaitable(called) else None
    else:
        assert member == getattr(end._inner, name)
    assert name in asked
