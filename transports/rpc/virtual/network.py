"""A virtual network in one process, on the running loop's clock: names instead of machines, and injected faults.

On the virtual clock a run is determined by the seed. A fault has the same effect as on real processes and links: a
killed party gets no notice, a frozen party does nothing, and the frames that a cut link holds back arrive when the link
is healed.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from transports.emulation.in_flight_queue import AccessLine, InFlightQueue
from transports.emulation.link_timing import LinkTiming
from transports.emulation.options import LinkProfile
from transports.rpc.server import MAX_BYTES_IN_FLIGHT
from transports.rpc.virtual.endpoint import SCHEME, FrameEvent, VirtualEndpoint
from transports.rpc.virtual.process import Process

T = TypeVar("T")


class VirtualNetwork:
    """A network of named parties for one running loop; the address of `name` is `virtual://name`.

    A frame from a party to itself arrives without delay.

    Args:
        seed: seed of the jitter.
        delay, jitter: seconds that a frame takes between two parties: uniform in delay ± jitter.
        rate: bytes a second from one party to another.
        max_in_flight: bytes of messages that one connection may have in an endpoint's memory, headers included.
        scale: each byte of an array stands for this many bytes of a larger run. The caller divides `rate` by it; the
            bytes of headers are divided here, so that they take their true share.
    Raises:
        ValueError: the jitter exceeds the delay.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        delay: float = 1e-3,
        jitter: float = 0.0,
        rate: float = math.inf,
        max_in_flight: int = MAX_BYTES_IN_FLIGHT,
        scale: float = 1.0,
    ):
        self._profile = LinkProfile(delay, jitter, rate, seed=seed)
        self.max_in_flight, self.scale = max_in_flight, scale
        self.listeners: list[Callable[[FrameEvent], None]] = []
        self._incarnations = count(1)
        self._processes: dict[str, Process] = {}
        self._endpoints: dict[str, VirtualEndpoint] = {}
        self._queues: dict[tuple[str, str], InFlightQueue] = {}
        self._cuts: set[frozenset[str]] = set()
        self._access_lines: dict[str, tuple[AccessLine, AccessLine]] = {}
        self._added_delays: dict[str, float] = {}

    def set_access_rate(self, name: str, rate: float) -> None:
        """Give a party one access line of `rate` bytes a second each way, shared by all its links.

        Call this before the party sends. Frames from several parties at once pass one after another, in the order of
        arrival.
        """
        self._access_lines[address_of(name)] = AccessLine(rate), AccessLine(rate)

    def add_delay(self, name: str, seconds: float) -> None:
        """Delay every frame to and from this party by `seconds` more. Call this before the party sends."""
        self._added_delays[address_of(name)] = seconds

    def endpoint(self, name: str) -> VirtualEndpoint:
        """Open this party's endpoint; after a kill or a close, a new incarnation with a greater number.

        Raises:
            ValueError: it is open already.
        """
        if self.endpoint_at(address_of(name)) is not None:
            raise ValueError(f"{address_of(name)} is open already; close or kill it first")
        endpoint = VirtualEndpoint(self, self._process(name), next(self._incarnations), self.max_in_flight)
        self._endpoints[endpoint.address] = endpoint
        return endpoint

    def clock(self, name: str) -> Process:
        """The clock of this party's current process (`now`, `sleep`); its sleepers freeze and end with the process."""
        return self._process(name)

    def run(self, name: str, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a task of this party's current process; a kill cancels it. The caller awaits the task."""
        return self._process(name).run(coroutine)

    def intercept(self, listener: Callable[[FrameEvent], None]) -> None:
        """Call `listener` with every frame before it is received; it may inject any fault."""
        self.listeners.append(listener)

    def kill(self, name: str) -> None:
        """kill -9: cancel its tasks and end its requests; other parties see their connections break a delay later."""
        process = self._processes.pop(name, None)
        endpoint = self._endpoints.pop(address_of(name), None)
        if process is not None:
            process.kill()
        if endpoint is not None:
            endpoint.kill()
        self._recheck(name)

    def freeze(self, name: str) -> None:
        """SIGSTOP: it receives nothing, sends nothing, and its clock wakes no sleeper."""
        self._process(name).freeze()

    def thaw(self, name: str) -> None:
        """SIGCONT: held frames are sent and received in order; its clock has gone on meanwhile."""
        self._process(name).thaw()
        self._recheck(name)

    def cut(self, one: str, other: str) -> None:
        """Hold all frames between two parties, without an error."""
        self._cuts.add(frozenset((one, other)))

    def cut_off(self, name: str) -> None:
        """Hold all frames between this party and all others, without an error."""
        self._cuts.add(frozenset((name,)))

    def heal(self, *names: str) -> None:
        """Undo `cut` (two names) or `cut_off` (one name): the held frames arrive in order, a delay from now."""
        self._cuts.discard(frozenset(names))
        self._recheck(*names, delay=self._profile.delay)

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two live parties: frames in flight are lost, and both sides see the break."""
        endpoint = self.endpoint_at(address_of(one))
        for connection in () if endpoint is None else endpoint.connections:
            if connection.address == address_of(other):
                connection.reset()

    def endpoint_at(self, address: str) -> VirtualEndpoint | None:
        """The open endpoint at this address, or None."""
        endpoint = self._endpoints.get(address)
        return None if endpoint is None or endpoint.closed else endpoint

    def queue_between(self, source: str, destination: str) -> InFlightQueue:
        """The messages in flight from one address to another."""
        addresses = source, destination
        if addresses not in self._queues:
            self._queues[addresses] = self._new_queue(*addresses)
        return self._queues[addresses]

    def _new_queue(self, source: str, destination: str) -> InFlightQueue:
        names = source.removeprefix(SCHEME), destination.removeprefix(SCHEME)
        is_open = partial(self._is_open, *names)
        if source == destination:
            return InFlightQueue(LinkTiming(LinkProfile(), names), is_open)
        up, down = self._access_lines.get(source, (None, None))[0], self._access_lines.get(destination, (None, None))[1]
        added_delay = self._added_delays.get(source, 0.0) + self._added_delays.get(destination, 0.0)
        profile = replace(self._profile, delay=self._profile.delay + added_delay)
        return InFlightQueue(LinkTiming(profile, (source, destination)), is_open, up=up, down=down)

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            self._processes[name] = Process(name)
        return self._processes[name]

    def _is_open(self, source: str, destination: str) -> bool:
        """Whether frames pass: the receiver is not frozen, their link is not cut, and neither party is cut off."""
        process = self._processes.get(destination)
        if process is not None and process.frozen:
            return False
        if not self._cuts or source == destination:
            return True
        cuts = {source, destination}, {source}, {destination}
        return self._cuts.isdisjoint(map(frozenset, cuts))

    def _recheck(self, *names: str, delay: float = 0.0) -> None:
        """Check again whether frames can pass: on all lines of one name, or on the lines between two names."""
        ends = {address_of(name) for name in names}
        for ends_of_line, queue in self._queues.items():
            if ends.issubset(ends_of_line):
                queue.recheck(delay)


def address_of(name: str) -> str:
    """The address of the party with this name."""
    return f"{SCHEME}{name}"
