"""A whole network in one process, on the running loop's clock: names instead of machines, and faults at will.

On the virtual clock (`pipelined.aio.clock.run_virtual`) everything that happens follows from the seed. The one rule: a
fault does to a party what it does to a process or a link outside: a killed one is told nothing, a frozen one does
nothing, and what a cut link holds back arrives when it is healed.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar
from urllib.parse import SplitResult

from transports.emulation.delay_line import AccessLine, DelayLine
from transports.emulation.link import SlowLink
from transports.emulation.options import Shape
from transports.rpc.handlers import MOST_UNDER_WAY
from transports.rpc.virtual.endpoint import SCHEME, Passing, VirtualEndpoint
from transports.rpc.virtual.process import Process

T = TypeVar("T")


async def open_url(parts: SplitResult, shape: Shape | None) -> VirtualEndpoint:
    """A URL cannot name a network inside a process.

    Raises:
        ValueError: always, with what to call instead.
    """
    raise ValueError(f"no URL finds a virtual network ({parts.geturl()}); call VirtualNetwork(seed).endpoint(name)")


class VirtualNetwork:
    """Parties that are told apart by name; the address of `name` is `virtual://name`. Used inside one running loop.

    A party hears itself at once: what it says to itself leaves no machine.

    Args:
        seed: of the jitter.
        delay, jitter: seconds that every frame takes from one party to another, evenly spread around the delay.
        rate: bytes a second that leave for one other party.
        most_under_way: bytes of messages that one connection may have in an endpoint's memory, headers included.
        scale: how many bytes of an array each of its bytes stands for; what is said beside arrays is as large as it is.
            Rates are of bytes as they are sent, so a head takes that much less of a line.
    Raises:
        ValueError: the jitter is beyond the delay.
    """

    def __init__(
        self,
        seed: int = 0,
        delay: float = 1e-3,
        jitter: float = 0.0,
        rate: float = math.inf,
        most_under_way: int = MOST_UNDER_WAY,
        scale: float = 1.0,
    ):
        self._shape, self.most_under_way, self.scale = Shape(delay, jitter, rate, seed=seed), most_under_way, scale
        self.listeners: list[Callable[[Passing], None]] = []
        self._incarnations = count(1)
        self._processes: dict[str, Process] = {}
        self._endpoints: dict[str, VirtualEndpoint] = {}
        self._delay_lines: dict[tuple[str, str], DelayLine] = {}
        self._cuts: set[frozenset[str]] = set()
        self._lines: dict[str, tuple[AccessLine, AccessLine]] = {}
        self._away: dict[str, float] = {}

    def line(self, name: str, rate: float) -> None:
        """Let a party reach all others by one line of so many bytes a second, each way; before it says a word.

        What comes from several at once comes one after another, in the order of arrival.
        """
        self._lines[address_of(name)] = AccessLine(rate), AccessLine(rate)

    def away(self, name: str, seconds: float) -> None:
        """Let every frame to this party and from it take so many seconds more; before it says a word."""
        self._away[address_of(name)] = seconds

    def endpoint(self, name: str) -> VirtualEndpoint:
        """Open the end of this party; after a kill or a close it is another incarnation, with a greater number.

        Raises:
            ValueError: it is open already.
        """
        if self.listening(address_of(name)) is not None:
            raise ValueError(f"{address_of(name)} is open already; close or kill it first")
        end = VirtualEndpoint(self, self._process(name), next(self._incarnations), self.most_under_way)
        self._endpoints[end.address] = end
        return end

    def clock(self, name: str) -> Process:
        """The clock of this party's present life (`now`, `sleep`): its sleepers freeze and die with it."""
        return self._process(name)

    def run(self, name: str, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a task of this party's present life: a kill cancels it. The caller awaits the task."""
        return self._process(name).run(coroutine)

    def overhear(self, hear: Callable[[Passing], None]) -> None:
        """Call `hear` with every frame before it is heard; it may do any fault to anybody."""
        self.listeners.append(hear)

    def kill(self, name: str) -> None:
        """kill -9: its tasks are cancelled, its asks end; others see their connections broken when that arrives."""
        process = self._processes.pop(name, None)
        end = self._endpoints.pop(address_of(name), None)
        if process is not None:
            process.kill()
        if end is not None:
            end.die()
        self._go_on(name)

    def freeze(self, name: str) -> None:
        """SIGSTOP: nothing reaches it, nothing leaves it, and its clock wakes nobody."""
        self._process(name).freeze()

    def thaw(self, name: str) -> None:
        """SIGCONT: what was held back comes and goes, in order; the time is not given back."""
        self._process(name).thaw()
        self._go_on(name)

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two parties, and tell nobody."""
        self._cuts.add(frozenset((one, other)))

    def cut_off(self, name: str) -> None:
        """Let nothing pass between this party and anybody else."""
        self._cuts.add(frozenset((name,)))

    def heal(self, *names: str) -> None:
        """Undo `cut` (two names) or `cut_off` (one): what was sent arrives, in order, a delay from now."""
        self._cuts.discard(frozenset(names))
        self._go_on(*names, after=self._shape.delay)

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two live parties: what is under way is lost, both sides see it soon."""
        end = self.listening(address_of(one))
        for connection in () if end is None else end.connections:
            if connection.address == address_of(other):
                connection.reset()

    def listening(self, address: str) -> VirtualEndpoint | None:
        """Who is asked at this address now."""
        end = self._endpoints.get(address)
        return None if end is None or end.closed else end

    def delay_line(self, source: str, destination: str) -> DelayLine:
        """How frames go from one address to another."""
        ends = source, destination
        if ends not in self._delay_lines:
            self._delay_lines[ends] = self._opened(*ends)
        return self._delay_lines[ends]

    def _opened(self, source: str, destination: str) -> DelayLine:
        names = source.removeprefix(SCHEME), destination.removeprefix(SCHEME)
        passes = lambda: self._passes(*names)  # noqa: E731
        if source == destination:
            return DelayLine(SlowLink(Shape(), names), passes)
        lines = self._lines.get(source, (None, None))[0], self._lines.get(destination, (None, None))[1]
        away = self._away.get(source, 0.0) + self._away.get(destination, 0.0)
        shape = replace(self._shape, delay=self._shape.delay + away)
        return DelayLine(SlowLink(shape, (source, destination)), passes, lines)

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            self._processes[name] = Process(name)
        return self._processes[name]

    def _passes(self, source: str, destination: str) -> bool:
        process = self._processes.get(destination)
        if process is not None and process.frozen:
            return False
        if not self._cuts or source == destination:
            return True
        parties = (source, destination), (source,), (destination,)
        return not any(frozenset(some) in self._cuts for some in parties)

    def _go_on(self, *names: str, after: float = 0.0) -> None:
        """Look again at the ways that one name begins or ends, or that two names share."""
        ends = {address_of(name) for name in names}
        for ends_of_line, delay_line in self._delay_lines.items():
            if ends.issubset(ends_of_line):
                delay_line.go_on(after)


def address_of(name: str) -> str:
    """Where a party of this name is asked."""
    return f"{SCHEME}{name}"
