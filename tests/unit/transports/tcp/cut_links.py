"""Links between two network namespaces, which this program cuts and mends: run it by `unshare --net --map-root-user`.

Each case has a pair of interfaces of its own, so that all run side by side in one process:

    here                     there
    link - socket - 10.9.N.1 === 10.9.N.2 - socket - link, or a process that may be stopped

A cut takes the address at the far end away: packets vanish without a word, as at a machine without power. The program
prints a line of JSON: for each case the seconds after which a link ended, or null where it went on as it should.
"""

import asyncio
import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from transports.stream import sockets as _sockets
from transports.stream.connection import Ending, FrameConnection
from transports.stream.sockets import (
    ACK_TIMEOUT_S,
    CONNECT_S,
    KEEPALIVE,
    Keepalive,
    connect_to,
    seconds_unacknowledged,
    set_options,
)

CLONE_NEWNET = 0x40000000
LONG = bytes(32 << 20)


@dataclass(frozen=True)
class Limits:
    """In seconds: those of the code, or shorter ones, and how long cuts and stops last."""

    keepalive: Keepalive = KEEPALIVE
    connect: float = CONNECT_S
    sending: float = ACK_TIMEOUT_S
    mended: float = 5.0
    stopped: float = 1.25 * ACK_TIMEOUT_S
    most: float = 4 * ACK_TIMEOUT_S


SHORT = Limits(Keepalive(1, 1, 1), connect=1.0, sending=2.5, mended=0.1, stopped=5.0, most=12.0)
"""A stopped process' kernel leaves probes within half a second of another unanswered; `sending` must be longer.
A kernel sends again 0.2, 0.6 and 1.4 s after a cut, and then at 3 s: a link that is mended before 1.4 s holds."""


class Namespace:
    """Another network namespace, kept by a process that sleeps there."""

    def __init__(self, stack):
        keeper = stack.enter_context(subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE))
        stack.callback(keeper.kill)
        self.pid = keeper.pid
        outer = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.pid}/ns/net") == outer:
            os.sched_yield()
        self._thread = stack.enter_context(ThreadPoolExecutor(1, initializer=self._enter))

    def do(self, work):
        """Call this in a thread that lives there; a socket stays in the namespace where it was made."""
        return self._thread.submit(work).result()

    def ip(self, *words):
        self.do(partial(ip, *words))

    def _enter(self):
        with open(f"/proc/{self.pid}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Wire:
    """A pair of interfaces between here and there."""

    def __init__(self, number, there):
        self._there, self._name = there, f"far{number}"
        self.near, self.far = f"10.9.{number}.1", f"10.9.{number}.2"
        ip("link", "add", f"near{number}", "type", "veth", "peer", "name", self._name)
        ip("link", "set", self._name, "netns", str(there.pid))
        ip("addr", "add", f"{self.near}/24", "dev", f"near{number}")
        ip("link", "set", f"near{number}", "up")
        there.ip("link", "set", self._name, "up")
        self.mend()

    def cut(self):
        self._there.ip("addr", "del", f"{self.far}/24", "dev", self._name)

    def mend(self):
        self._there.ip("addr", "add", f"{self.far}/24", "dev", self._name)

    async def connected(self, keepalive):
        """A socket here, and its other end there."""
        loop = asyncio.get_running_loop()
        with await loop.run_in_executor(None, self._there.do, partial(socket.create_server, (self.far, 0))) as listener:
            near = await connect_to(listener.getsockname())
            far, _ = listener.accept()
        far.setblocking(False)
        for sock in (near, far):
            set_options(sock, keepalive)
        return near, far


class End:
    """A link that keeps its frames and says when it broke."""

    def __init__(self, sock, timeout):
        self.loop = asyncio.get_running_loop()
        self.sock = sock
        self.broken, self.came = self.loop.create_future(), self.loop.create_future()
        self.connection = FrameConnection(sock, self, self, timeout=timeout)
        self._space, self._count = memoryview(bytearray(1 << 20)), 0
        self.direct = False

    def buffer(self):
        return self._space

    def advance(self, count):
        self._count += count
        if self._count == len(LONG):
            self.came.set_result(None)

    def fail(self, error):
        """Nothing was kept."""

    def on_broken(self, reason):
        self.broken.set_result(None)
        self.connection.end(Ending.DROP, OSError(reason))


class Scene:
    """A wire with a connection over it, the near end of which is a link."""

    def __init__(self, wire, limits, near, far):
        self.wire, self.limits, self.far = wire, limits, far
        self.near = End(near, limits.sending)

    def close(self):
        self.near.connection.end(Ending.DROP, OSError("the case has ended"))
        self.far.close()

    async def until_broken(self):
        """Seconds from now until the link here ends."""
        began = self.near.loop.time()
        await self.near.broken
        return self.near.loop.time() - began


async def idle(scene):
    """Only the kernel's keepalive is to find this one."""
    scene.near.connection._next_check.cancel()
    scene.wire.cut()
    return await scene.until_broken()


async def asking(scene):
    """What was sent is short and has left for the kernel whole; an answer is awaited."""
    scene.wire.cut()
    scene.near.connection.write([b"question"])
    return await scene.until_broken()


async def sending(scene):
    scene.wire.cut()
    scene.near.connection.write([LONG])
    return await scene.until_broken()


async def sending_to_a_full_receiver(scene):
    """The far end has read nothing, so that the kernel here only probes it."""
    scene.near.connection.write([LONG])
    while seconds_unacknowledged(scene.near.sock) is not None:  # noqa: ASYNC110 (the kernel has nothing to wait on)
        await asyncio.sleep(0.02)
    scene.wire.cut()
    return await scene.until_broken()


async def mended(scene):
    far = End(scene.far, scene.limits.sending)
    scene.wire.cut()
    scene.near.connection.write([LONG])
    await asyncio.sleep(scene.limits.mended)
    scene.wire.mend()
    await asyncio.wait([scene.near.broken, far.came], return_when=asyncio.FIRST_COMPLETED)
    broken = scene.near.broken.done() or far.broken.done()
    far.connection.end(Ending.DROP, OSError("the case has ended"))
    return "broken" if broken else None


async def stopped(scene):
    """A process of the far end is stopped amid a long message, for longer than the limit, and goes on."""
    scene.far.setblocking(True)
    reader = await asyncio.create_subprocess_exec("cat", stdin=scene.far, stdout=subprocess.DEVNULL)
    scene.far.close()
    try:
        reader.send_signal(signal.SIGSTOP)
        frame = scene.near.connection.write([LONG])
        await asyncio.wait([scene.near.broken], timeout=scene.limits.stopped)
        reader.send_signal(signal.SIGCONT)
        await asyncio.wait([scene.near.broken, frame.written], return_when=asyncio.FIRST_COMPLETED)
        return "broken" if scene.near.broken.done() else None
    finally:
        reader.kill()
        await reader.wait()


async def connecting(scene):
    address = scene.far.getsockname()
    scene.wire.cut()
    began = scene.near.loop.time()
    try:
        await connect_to(address)
    except OSError:
        return scene.near.loop.time() - began


async def outcome(case, scene):
    try:
        async with asyncio.timeout(scene.limits.most):
            return await case(scene)
    except TimeoutError:
        return math.inf
    finally:
        scene.close()


async def main(limits, there):
    cases = idle, asking, sending, sending_to_a_full_receiver, mended, stopped, connecting
    wires = [Wire(number, there) for number in range(len(cases))]
    scenes = [Scene(wire, limits, *await wire.connected(limits.keepalive)) for wire in wires]
    _sockets.CONNECT_S = limits.connect
    ends = await asyncio.gather(*map(outcome, cases, scenes))
    print(json.dumps({case.__name__: end for case, end in zip(cases, ends, strict=True)}))


if __name__ == "__main__":
    with ExitStack() as kept:
        asyncio.run(main(Limits() if "--full" in sys.argv else SHORT, Namespace(kept)))
