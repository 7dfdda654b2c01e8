"""`local` says at the end how it ended, whatever its nodes said last."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from apps.common.commands.local_processes import ChildFailed
from apps.ravnest import local
from tests.unit.apps.ravnest.test_command import parse

ENDED, STOPPED = (
    "local: all steps are trained; the nodes end",
    "local: stopped before all steps were trained; the nodes end",
)


class Said:
    """A child that says something, and ends at a word of the test."""

    def __init__(self, *lines):
        self.stdout, self.returncode, self.over = asyncio.StreamReader(), None, asyncio.Event()
        self.say(*lines)

    def say(self, *lines):
        self.stdout.feed_data("".join(f"{line}\n" for line in lines).encode())

    def end(self, code=0):
        self.returncode = code
        self.stdout.feed_eof()
        self.over.set()

    async def wait(self):
        await self.over.wait()
        return self.returncode

    def terminate(self):
        if self.returncode is None:
            self.say("node0: has joined")


async def said_by_local(monkeypatch, act):
    """What `local` says where this happens to its `train`, and to its task."""
    told, train, node, enough = [], Said("average 1234"), Said("node0: has joined"), asyncio.Event()

    def say(line):
        told.append(line)
        if len(told) == 4:
            enough.set()

    @asynccontextmanager
    async def started(program, words):
        yield train if words[0] == "train" else node

    @asynccontextmanager
    async def coordinator(*_):
        yield Said(), "tcp://here"

    monkeypatch.setattr(local, "started", started)
    monkeypatch.setattr(local, "terminate", Said.terminate)
    monkeypatch.setattr(local, "started_coordinator", coordinator)
    running = asyncio.ensure_future(local._local(parse(["local", "--nodes", "1"]), (), say))
    await enough.wait()
    act(train, running)
    await asyncio.wait([running])
    return running, told


@pytest.mark.parametrize(
    ("act", "last"), [(lambda train, _: train.end(), ENDED), (lambda _, task: task.cancel(), STOPPED)]
)
async def test_the_last_line_says_how_the_training_ended(monkeypatch, act, last):
    _, told = await said_by_local(monkeypatch, act)
    assert told[0] == "starting 3 processes: a coordinator, `train` and 1 node"
    assert told[2:] in (
        ["average 1234", "node0: has joined", last],
        ["node0: has joined", "average 1234", last],
    )


async def test_where_train_fails_its_error_is_the_last_word(monkeypatch):
    running, told = await said_by_local(monkeypatch, lambda train, _: train.end(2))
    assert isinstance(running.exception(), ChildFailed) and ENDED not in told and STOPPED not in told


async def test_local_ends_where_its_last_node_has_ended():
    """`train` would wait for nodes for ever."""
    nodes = Said(), Said()
    for node, code in zip(nodes, (1, -9), strict=True):
        node.end(code)
    with pytest.raises(ChildFailed, match="the last node ended with -9; what it printed says why"):
        await local._follow(Said(), Said(), nodes, print)


@pytest.mark.virtual
async def test_local_goes_on_with_the_nodes_that_are_left():
    nodes = Said(), Said()
    nodes[0].end(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await local._follow(Said(), Said(), nodes, print)
