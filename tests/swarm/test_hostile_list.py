"""A list of what the hostile say, each of it at every port of a swarm that trains over TCP: peers, trainer, directory.

Each costs its own connection or request, and its receiver counts it by name; training ends with the bits
of one process, and no memory is taken for what was announced. The page for people is in tests/unit/apps.
"""

import asyncio
import socket
from contextlib import AsyncExitStack, suppress

import msgpack
import numpy as np

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import RealClock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.registration import registered
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.protocol.work import Backward, GetWork
from pipelined.swarm.records import members as records
from pipelined.swarm.rules import Rules
from tests.swarm.exact import WIDTH, ExactStage, Reference, data
from tests.swarm.over_tcp import end_in_order
from tests.unit.transports.rpc.tcp.hostile import KEY, forged, intruder, request, resident, until_lost
from transports import Nursery, pack
from transports.rpc import Rejected, Unreachable
from transports.rpc.frames import RpcKind as Kind
from transports.rpc.tcp.endpoint import open_at
from transports.rpc.tcp.identity import PartyIdentity, connect

STEPS, BATCH = 30, 6
MAX_BYTES = 64 << 20
KNOWN_TOPIC = {"directory": "directory.enter"}
"""A topic without arrays that is answered at a port; elsewhere `status`."""
BOMB = pack("zstd", [np.zeros(1 << 23)], "64 MiB of zeros")
SCALED = pack("blockwise8", [np.ones(4096, np.float32)], "one block")


def deep(topic):
    return msgpack.packb([[0, topic], None, []])[:-2] + b"\x91" * 50_000 + b"\xc0\x90"


def said(topic):
    """Frames of a party with the key, and the reason of their rejection."""
    return {
        "truncated": (request(0, topic=topic)[:-1], "a frame cut short"),
        "a huge header": (forged(Kind.REQUEST, header_bytes=2**32 - 1), "too many header bytes"),
        "a huge body": (forged(Kind.REQUEST, b"", 2**64 - 1), "too many body bytes"),
        "deep nesting": (forged(Kind.REQUEST, deep(topic)), "header is not msgpack"),
        "a size of -1": (
            forged(Kind.REQUEST, msgpack.packb([[0, topic], None, [["uint8", [-1]]]])),
            "a shape may hold only sizes from 0 up",
        ),
        "replayed": (2 * request(0, topic=topic), "a repeated request number"),
    }


def asked_of_a_peer(step, lineage, to):
    """A request, the incarnation that it names, and its rejection, of a member that asks for what it must not."""
    right, labels = np.arange(WIDTH, dtype=np.float64), np.ones(WIDTH)
    strange = [np.full(each.shape, np.nan, np.float32) if each.dtype == "float32" else each for each in SCALED.blocks]

    def backward(inputs=(right,), given=labels, note=None, step=step, index=0):
        return Backward(step, index, lineage, (inputs, note), ((given,), None), False)

    return {
        "a compression bomb": (backward(BOMB.blocks, note=BOMB.note), to, "malformed"),
        "scales that are no numbers": (backward(strange, note=SCALED.note), to, "malformed"),
        "an index of -1": (backward(index=-1), to, "malformed"),
        "a wrong shape": (backward((np.zeros(WIDTH + 1),)), to, "malformed"),
        "no finite gradient": (backward(given=np.full(WIDTH, np.nan)), to, "not finite"),
        "an older incarnation": (backward(), to - 1, "wrong incarnation"),
        "an older step": (backward(step=step - 1), to, "step passed"),
        "too much": (backward((np.zeros(1 << 21),)), to, "too large"),
    }


class Swarm:
    """One stage, two peers, a trainer and the directory, each at its port."""

    async def open(self, stack, tasks):
        clock, seconds = RealClock(), {"forward": 0.002, "backward": 0.004, "update": 0.001}
        names = ("directory", "p0", "p1", "t0", "mallory")
        self.ends = {name: await stack.enter_async_context(await open_at(("127.0.0.1", 0), KEY)) for name in names}
        self.mallory = self.ends.pop("mallory")
        self.rules = Rules("exact", stages=1, batch=BATCH, samples=float(BATCH), lease_s=5.0, rebalance_s=0.0)
        at, end = self.ends["directory"].address, self.ends
        views = {name: EmbeddedDirectory(end[name], at, clock) for name in ("p0", "p1", "t0")}
        self.directory = EmbeddedDirectory(self.mallory, at, clock)
        build = lambda index: ExactStage(index, 1)  # noqa: E731
        self.peers = [
            PeerProcess(
                LocalMember(name, end[name], views[name], clock), build, self.rules, TimedExecutor(seconds, clock)
            )
            for name in ("p0", "p1")
        ]
        self.trainer = TrainerProcess(LocalMember("t0", end["t0"], views["t0"], clock), data, self.rules, steps=STEPS)
        self.running = [tasks.create_task(serve_directory(end["directory"], clock))]
        self.running += [tasks.create_task(peer.run()) for peer in self.peers]
        self.clock = clock

    async def shout(self):
        """Send each to each port, from a party with the key and from a party with another."""
        for name, end in self.ends.items():
            for stream, reason in said(KNOWN_TOPIC.get(name, "status")).values():
                sock = await intruder(end)
                await asyncio.get_running_loop().sock_sendall(sock, stream)
                if reason == "a frame cut short":
                    sock.shutdown(socket.SHUT_WR)
                await until_lost(sock)
            with suppress(Unreachable):
                await connect(end.address, PartyIdentity(("127.0.0.1", 9), 78, b"the key of another swarm altogether"))

    async def request(self):
        """Ask each peer, and the trainer and the directory for what concerns them, as a member; what came of it."""
        outcomes = {}
        async with registered(self.directory, f"{records.TRAINERS}mallory", 5.0, self.clock) as place:
            record = records.TrainerRecord("mallory", self.mallory.address, place.incarnation, self.rules.digest)
            await place.put(record)
            view = self.trainer.view
            await view.wait_for(lambda: "mallory" in view.trainers and len(view.serving(0)) == 2)
            for peer in view.serving(0):
                head = view.head
                for case in asked_of_a_peer(head.step, head.lineage, peer.incarnation):
                    outcomes[peer.name, case] = await self._ask_a_peer(peer, case)
            note, _ = GetWork("mallory", place.incarnation - 1, 0, None).packed()
            outcomes["t0", "an older incarnation"] = await self._outcome("t0", "work", [], note, "stranger")
            for case, body in {"nonsense": b"\xc1", "deep nesting": b"\x91" * 50_000, "nothing": b""}.items():
                outcomes["directory", case] = await self._outcome(
                    "directory", "directory.read", [body], None, "bad request"
                )
        return outcomes

    async def _ask_a_peer(self, peer, case):
        """Where a step is taken meanwhile, what is asked is past: it is asked again."""
        while True:
            head = self.trainer.view.head
            request, incarnation, reason = asked_of_a_peer(head.step, head.lineage, peer.incarnation)[case]
            note, arrays = request.packed(incarnation)
            outcome = await self._outcome(peer.name, request.topic, arrays, note, reason)
            if outcome[0] == reason or outcome[0] not in ("step passed", "behind", "other lineage"):
                return outcome

    async def _outcome(self, name, topic, arrays, note, expected):
        try:
            await self.mallory.request(self.ends[name].address, topic, *arrays, note=note)
        except Rejected as rejection:
            return rejection.reason, expected
        return "answered", expected


async def troubled():
    async with AsyncExitStack() as stack, Nursery() as tasks:
        swarm = Swarm()
        await swarm.open(stack, tasks)
        training = tasks.create_task(swarm.trainer.run())
        view = swarm.trainer.view
        await view.wait_for(lambda: view.head is not None and view.head.step > 0)
        before = resident()
        outcomes, _ = await asyncio.gather(swarm.request(), swarm.shout())
        assert not training.done(), "all was sent too late to trouble the training"
        grown = resident() - before
        await training
        while any(peer.peer.replica.step < STEPS for peer in swarm.peers):  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
        await end_in_order(swarm.running)
        weights = [peer.peer.replica.stage.weights for peer in swarm.peers]
        counted = {name: (dict(end.invalid_input), dict(end.rejected_requests)) for name, end in swarm.ends.items()}
        return weights, outcomes, counted, grown


def test_each_of_a_list_is_refused_by_name_at_every_port_and_changes_nothing():
    weights, outcomes, counted, grown = asyncio.run(troubled())
    assert {case: pair for case, pair in outcomes.items() if pair[0] != pair[1]} == {}
    assert grown < MAX_BYTES
    for name, (rejected, _) in counted.items():
        assert rejected == {reason: 1 for _, reason in said("").values()} | {"wrong key": 1}, name
    for name in ("p0", "p1"):
        assert {"malformed", "not finite", "wrong incarnation", "step passed", "too large"} <= counted[name][1].keys()
    assert counted["t0"][1]["stranger"] == 1 and counted["directory"][1]["bad request"] == 3
    assert all(np.array_equal(each, Reference(1, BATCH).weights(STEPS, 0)) for each in weights)
