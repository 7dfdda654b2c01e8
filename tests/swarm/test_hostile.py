"""Hostile parties beside training: what they say changes no bit, is refused by name and counted, and takes no memory.

One has the key and the directory's leave to be a trainer, and asks every topic of every endpoint for everything but
what an honest one would; one has no key, and says bytes to every port.
"""

import asyncio
import dataclasses
import random
import socket
import tracemalloc
from contextlib import AsyncExitStack, suppress

import numpy as np
import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import RealClock, run_virtual
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.messaging.messages import VERSION, send
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.registration import registered
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.protocol.status import Status
from pipelined.swarm.records.members import TRAINERS, TrainerRecord
from pipelined.swarm.rules import Rules
from tests.docs.swarm_requests import REQUESTS
from tests.swarm.exact import WIDTH, ExactStage, Reference, data
from tests.swarm.over_tcp import end_in_order
from tests.swarm.virtual_swarm import VirtualSwarm
from tests.virtual_time import virtual_seconds
from transports import Nursery, TransportError, pack
from transports.rpc import Rejected
from transports.rpc.tcp.endpoint import open_at

STEPS = 14
MAX_BYTES = 64 << 20
HELD_OUT = 2
PASSES = ["forward", "backward", "evaluate"]
OF_PEERS = [*PASSES, "prepare", "resume", "reduce", "part", "inherit", "manifest", "chunk", "totals", "announce"]
TAKES_ARRAYS = [*PASSES, "part", "inherit"]
TOPICS = {
    "peer": [*OF_PEERS, "status", "directory.alive", "nonsense"],
    "trainer": ["work", "status", "directory.alive", "nonsense"],
    "directory": [f"directory.{name}" for name in ("read", "changes", "transact", "grant", "renew", "revoke")],
}
KINDS = {kind.topic: kind for kind in REQUESTS}
KNOWN = {*Reason, "another directory", "bad request"}


class Hostile:
    """Draws questions.

    Args:
        swarm: which it troubles.
    """

    def __init__(self, swarm, seed):
        self.swarm, self._draw = swarm, random.Random(seed)
        self.refused, self.answered = set(), 0

    async def run(self, endpoint, directory, clock):
        """Register as a trainer, and send requests until cancelled."""
        async with registered(directory, f"{TRAINERS}mallory", 1.0, clock) as place:
            await place.put(TrainerRecord("mallory", endpoint.address, place.incarnation, self.swarm.rules.digest))
            self.incarnation = place.incarnation
            async with asyncio.TaskGroup() as tasks:
                for _ in range(16):
                    tasks.create_task(self._ask_all(endpoint))

    async def _ask_all(self, endpoint):
        while True:
            whom, topic, arrays, note = self._question()
            try:
                async with asyncio.timeout(0.5):
                    await endpoint.request(f"virtual://{whom}", topic, *arrays, note=note)
                self.answered += 1
            except Rejected as rejection:
                self.refused.add(rejection.reason)
            except (TransportError, TimeoutError):
                pass
            await virtual_seconds(0.005)

    def _question(self):
        draw, swarm = self._draw, self.swarm
        kind = draw.choice(["peer", "peer", "peer", "trainer", "directory"])
        whom = {"peer": sorted(swarm.peers), "trainer": sorted(swarm.trainers), "directory": ["directory"]}[kind]
        topic, whom = draw.choice(TOPICS[kind]), draw.choice(whom)
        arrays, codecs = self._arrays() if topic in TAKES_ARRAYS or draw.random() < 0.1 else ((), [None, None])
        return whom, topic, arrays, self._note(whom, topic, arrays, codecs)

    def _note(self, whom, topic, arrays, codecs):
        """Mostly the list of a request's fields, some right and some strange; but never a whole right request."""
        draw, head = self._draw, self.swarm.heads[-1]
        if draw.random() < 0.15:
            return self._strange()
        known = self.swarm.trainers["t0"].view.peers.get(whom)
        two = topic == "backward" or (topic == "evaluate" and draw.random() < 0.5)
        first = len(arrays) // 2 if two else len(arrays)
        right = {
            "step": head.step,
            "parameter_version": head.parameter_version,
            "index": draw.randint(0, 8 + HELD_OUT),
            "inputs": [first, codecs[0]],
            "given": [len(arrays) - first, codecs[1]],
            "labels": [len(arrays) - first, codecs[1]] if two else None,
            "part": [len(arrays), codecs[0]],
            "count": True,
            "round": [self.swarm.trainers["t0"].view.leader_revision, draw.randint(0, 1 << 40)],
            "members": [[whom, f"virtual://{whom}", 1]],
            "keep": False,
            "within": 0.0,
            "coded": True,
            "root": b"\0" * 32,
            "name": "mallory",
            "incarnation": self.incarnation if topic != "work" else self._strange(),  # else it would get work
            "done": [head.step, 0, 0, [[0, "mallory"]], None],
            "position": 0,
            "start": 0,
            "slot": 0,
            "events": False,
        }
        fields = dataclasses.fields(KINDS[topic]) if topic in KINDS else ()
        incarnation = known.incarnation - (draw.random() < 0.05) if known else 0
        note = [VERSION, incarnation, *(right.get(field.name) for field in fields)]
        for at in draw.sample(range(len(note)), draw.randint(0, 2)):
            note[at : at + 1] = [] if draw.random() < 0.3 else [self._strange()]
        return note

    def _strange(self, depth=0):
        draw = self._draw
        plain = [None, True, -1, 0, 1 << 62, -(1 << 63), 1e308, float("nan"), float("inf"), "", "x" * 500, b"\0\xff"]
        if depth == 6 or draw.random() < 0.6:
            return draw.choice(plain)
        inner = [self._strange(depth + 1) for _ in range(draw.randint(0, 3))]
        return inner if draw.random() < 0.5 else {draw.choice(["step", "counted", "k"]): each for each in inner}

    def _arrays(self):
        """One or two arrays of which at least one is not what a stage can take, and how they are coded."""
        draw = self._draw
        wrong = [
            np.full(WIDTH, np.nan),
            np.full(WIDTH, np.inf),
            np.zeros(WIDTH + 1),
            np.zeros(WIDTH, np.float32),
            np.zeros((WIDTH, 2)),
            np.zeros(0),
            np.zeros(WIDTH, np.complex128),
            np.zeros(1 << 14),
        ]
        right = np.arange(WIDTH, dtype=np.float64)
        arrays = [draw.choice(wrong), right][: draw.randint(0, 2)]
        if draw.random() < 0.6:
            return arrays, [None, None]
        return self._coded()

    def _coded(self):
        """What a codec made, and then was made worse: a bomb, scales that are no numbers, another header."""
        draw, codec = self._draw, self._draw.choice(["zstd", "blockwise8", "bf16", "fp16"])
        packed = pack(codec, [np.zeros(1 << 20 if codec == "zstd" else 4096, np.float32)], "what is sent")
        blocks, note = list(packed.blocks), packed.note
        if draw.random() < 0.5:
            strange = np.float32(draw.choice([np.nan, np.inf, -1.0]))
            blocks = [np.full(each.shape, strange) if each.dtype == "float32" else each for each in blocks]
        if draw.random() < 0.5:
            note = [draw.choice([codec, "pickle", ""]), [["float64", [draw.choice([-1, 1 << 50, WIDTH])], len(blocks)]]]
        return blocks, [note, note if draw.random() < 0.5 else self._strange()]


async def troubled(seed, codec):
    evaluations = {"eval_every": 1, "eval_batch": HELD_OUT}
    swarm = VirtualSwarm(stages=2, batch=8, seed=seed, codec=codec, sums_codec=codec, **evaluations)
    for at in range(4):
        swarm.peer(f"p{at}")
    swarm.trainer("t0", steps=STEPS)
    await swarm.until(lambda: len(swarm.heads) == 2)
    hostile = Hostile(swarm, seed)
    swarm.start("mallory", hostile.run(*swarm.client("mallory")))
    await swarm.finish(within=20)
    assert [head.step for head in swarm.heads] == list(range(STEPS + 1)), "a step was lost or taken twice"
    measured = swarm.trainers["t0"].view.evaluation
    assert (measured.step, measured.loss) == (STEPS, swarm.reference.score(STEPS, HELD_OUT))
    assert hostile.refused - KNOWN == set(), "refused without a name"
    expected = {
        "malformed",
        "another version",
        "stranger",
        "not finite",
        "wrong incarnation",
        "unknown topic",
        "too large",
    }
    assert expected <= hostile.refused
    statuses = [await send(swarm.watcher, f"virtual://{name}", Status()) for name in swarm.peers]
    told = [status.traffic.rejected_requests for status in statuses]
    assert all(each["malformed"] and each["stranger"] and sum(each.values()) > 50 for each in told), told
    assert not any(each.failed.done() for each in swarm.endpoints.values()), "a handler failed"
    await swarm.close()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    "seed, codec", [(0, ""), *(pytest.param(seed, "zstd", marks=pytest.mark.full) for seed in range(1, 6))]
)
def test_a_hostile_trainer_changes_nothing_and_is_refused_by_name(seed, codec):
    tracemalloc.start()
    try:
        run_virtual(troubled(seed, codec))
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


async def shouted_at(address, draw):
    """Say bytes to a port, again and again: noise, huge lengths, halves of what a stranger would say, silence."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    while True:
        said = draw.choice([draw.randbytes(200), b"\xff" * 4096, b"", b"\0" * 64, b"GET / HTTP/1.0\r\n\r\n"])
        with socket.create_connection((host, int(port))) as sock, suppress(ConnectionError):
            sock.sendall(said)
            await asyncio.sleep(0)


async def over_tcp():
    """One stage, two peers, a trainer; every port of theirs is shouted at."""
    key, clock, steps = b"a key of thirty-two bytes or more", RealClock(), STEPS // 2
    rules = Rules("exact", stages=1, batch=6, samples=6.0, lease_s=30.0, rebalance_s=0.0)
    build, seconds = lambda index: ExactStage(index, 1), {"forward": 0.004, "backward": 0.01, "update": 0.001}
    async with AsyncExitStack() as stack, Nursery() as tasks:
        ends = [await stack.enter_async_context(await open_at(("127.0.0.1", 0), key)) for _ in range(4)]
        running = [tasks.create_task(serve_directory(ends[0], clock))]
        views = [EmbeddedDirectory(end, ends[0].address, clock) for end in ends[1:]]
        peers = [
            PeerProcess(
                LocalMember(f"p{at}", ends[at], views[at - 1], clock), build, rules, TimedExecutor(seconds, clock)
            )
            for at in (1, 2)
        ]
        running += [tasks.create_task(peer.run()) for peer in peers]
        running += [tasks.create_task(shouted_at(end.address, random.Random(at))) for at, end in enumerate(ends)]
        trainer = TrainerProcess(LocalMember("t0", ends[3], views[2], clock), data, rules, steps=steps)
        await trainer.run()
        while any(peer.peer.replica.step < steps for peer in peers):  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
        await end_in_order(running)
        return [peer.peer.replica.stage.weights for peer in peers], [end.invalid_input for end in ends]


def test_bytes_from_strangers_at_every_port_change_nothing_and_are_counted():
    tracemalloc.start()
    try:
        weights, rejected = asyncio.run(over_tcp())
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert all(np.array_equal(each, Reference(1, 6).weights(STEPS // 2, 0)) for each in weights)
    assert all(sum(each.values()) > 3 for each in rejected), rejected
