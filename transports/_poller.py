"""One task that asks a library without callbacks, again and again, which of its requests are done.

The one rule: all outstanding requests are asked about in one call, and how soon to ask again depends on how long it
has been quiet, on whether this rank is computing, and on how many ranks share the node's cores. Knows no MPI: it is
given the function that tests requests.

Why naps at all: torch in a thread beside a loop that spins runs 2 to 3 times slower (the interpreter's lock), beside
one that polls each millisecond 0 to 3 %; and 64 ranks that spin on 2 cores leave nobody any core to work on.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Done = Callable[[Any], None]
Test = Callable[[list[Any]], list[tuple[int, Any]]]
FEW = 8


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to nap between two polls; all in seconds.

    Args:
        keen: how long to poll without napping after anything has happened, only letting other processes go first.
        hurried: the same while somebody waits urgently, as in a collective's inner loop.
        shortest: the first nap.
        longest: no nap is longer.
        computing: while this rank computes, no nap is shorter, and there is no keen polling.
        linger: how long one who must wait may poll by himself first; it takes the loop's time.
        asleep: the nap while nothing is under way here and all peers wake this rank when they send something.
        restless: how quiet it must have been for that; a library may not see at once what it was woken for.
        share: a nap takes this share of the quiet time so far, which bounds the relative delay it can cause.
    """

    keen: float = 1e-3
    hurried: float = 1e-3
    shortest: float = 100e-6
    longest: float = 1e-3
    computing: float = 1e-3
    linger: float = 50e-6
    asleep: float = 50e-3
    restless: float = 2e-3
    share: float = 1 / 8

    @classmethod
    def on_node(cls, ranks: int, cores: int) -> "Patience":
        """Keen while every rank has a core; the more ranks share one, the longer the naps, up to 20 ms.

        A poll costs some 30 µs, so that the naps of many ranks leave them three quarters of the cores. Naps on the
        inner loop of a collective made it up to 2.5 times slower with 4 ranks on 2 cores.
        """
        if ranks <= cores:
            return cls()
        return cls(keen=0.0, hurried=0.5e-3, linger=0.0, longest=min(ranks / cores / 8 * 1e-3, 20e-3))

    def nap(self, quiet: float, computing: bool, urgent: bool = False, asleep: bool = False) -> float:
        """The nap due after so many quiet seconds; 0 means to ask again as soon as the loop has had its turn."""
        if quiet < (self.hurried if urgent else self.keen) and not computing:
            return 0.0
        if asleep and quiet > self.restless:
            return self.asleep
        shortest = self.computing if computing else self.shortest
        return max(shortest, min(quiet * self.share, self.longest))


class Poller:
    """Watches requests until they are done.

    Args:
        test: given the requests, returns (index, outcome) of those done now; an outcome that is an exception is a
            failure. It never blocks.
        patience: how long to nap.
        doze: told True, one poll before the first nap, when this rank must be woken to hear of anything at once; False
            when it polls without naps again.
    """

    def __init__(self, test: Test, patience: Patience, doze: Callable[[bool], None] = lambda dozing: None):
        self._test, self._patience, self._doze = test, patience, doze
        self._loop = asyncio.get_running_loop()
        self._listen: Callable[[], bool] = lambda: False
        self._requests: list[Any] = []
        self._dones: list[Done] = []
        self._turns: list[asyncio.Future] = []
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._next: asyncio.Handle
        self._napping = False
        self._dozing = False
        self._computing = False
        self._woken = False
        self._urgent = 0
        self._stopped = False
        self._failure: Exception | None = None
        self._active = self._loop.time()

    @property
    def requests(self) -> list[Any]:
        """What is being watched now."""
        return list(self._requests)

    @property
    def failure(self) -> Exception | None:
        """Why nothing is watched any more, if that is so."""
        return self._failure

    @property
    def gentle(self) -> bool:
        """Whether this rank computes, so that nothing should spin beside it."""
        return self._computing

    def listen(self, listen: Callable[[], bool]) -> None:
        """Let each poll also ask for what comes without a request; `listen` says whether anything came."""
        self._listen = listen

    def watch(self, request: Any, done: Done) -> None:
        """Call `done(outcome)` once the request is done; at once if the poller has given up."""
        if self._failure is not None:
            done(self._failure)
            return
        self._requests.append(request)
        self._dones.append(done)
        self.wake()

    def watch_all(self, requests: Sequence[Any], done: Done) -> None:
        """Call `done(outcome)` once all the requests are done: with the first failure, or else the last outcome."""
        outcomes: list[Any] = []

        def one_done(outcome: Any) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(requests):
                done(next((outcome for outcome in outcomes if isinstance(outcome, Exception)), outcome))

        for request in requests:
            self.watch(request, one_done)
        if not requests:
            done(self._failure)

    def wait(self, *requests: Any, done: Done | None = None, urgent: bool = False) -> asyncio.Future:
        """A future of what `watch_all` would tell; cancelling it leaves the requests watched.

        Args:
            urgent: poll keenly for a while even where ranks share cores.
            done: called with the outcome first, whether or not somebody still waits.
        """
        future = self._loop.create_future()
        self._urgent += urgent

        def finished(outcome: Any) -> None:
            self._urgent -= urgent
            if done is not None:
                done(outcome)
            resolve(future, outcome)

        self.watch_all(requests, finished)
        return future

    def turn(self) -> asyncio.Future:
        """A future that is done after the next poll, or at once if there will be none."""
        turn = self._loop.create_future()
        if self._failure is None:
            self._turns.append(turn)
        else:
            turn.set_result(None)
        return turn

    def poll(self) -> bool:
        """Ask once about all requests and for news; call what was to be called; say whether anything happened."""
        news = self._listen()
        finished = self._test(self._requests) if self._requests else []
        if not finished:
            return news
        dones = [(self._dones[index], outcome) for index, outcome in finished]
        for index in sorted([index for index, _ in finished], reverse=True):
            del self._requests[index], self._dones[index]
        for done, outcome in dones:
            done(outcome)
        return True

    def linger(self, over: Callable[[], bool]) -> None:
        """Poll right here for a moment, for what comes sooner than the loop's turns would notice it.

        Not while this rank computes, nor with many requests, which mean that the loop has other work.
        """
        if self._computing or len(self._requests) > FEW:
            return
        end = self._loop.time() + self._patience.linger
        while not over() and self._loop.time() < end:
            self.poll()

    async def run(self) -> None:
        """Poll until `stop` or `fail`.

        The polls are bare timer callbacks, a third of the cost of a task that sleeps: 64 ranks share two cores.
        """
        self._next = self._loop.call_soon(self._tick)
        try:
            await self._over
        finally:
            self._next.cancel()

    def _tick(self) -> None:
        """Poll once and set the timer for the next time."""
        self._napping = False
        try:
            if self.poll():
                self._active = self._loop.time()
        except Exception as error:
            resolve(self._over, error)
            return
        self._take_turn()
        if self._stopped:
            resolve(self._over, None)
            return
        quiet, asleep = self._loop.time() - self._active, self._woken and not self._requests
        self._rest(self._patience.nap(quiet, self._computing, self._urgent > 0, asleep))

    def _rest(self, pause: float) -> None:
        """Set the timer; who has only now said that it dozes polls once more, for whoever did not hear that in time."""
        self._napping = pause > 0 and self._dozing
        if self._dozing != (pause > 0):
            self._dozing = pause > 0
            self._doze(self._dozing)
        if self._napping:
            self._next = self._loop.call_later(pause, self._tick)
        else:
            os.sched_yield()
            self._next = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        """End `run` after its present step."""
        self._stopped = True
        self.wake()

    def fail(self, error: Exception) -> list[Any]:
        """Give up: everything watched, now or later, is done with this error. Returns the unfinished requests."""
        self._failure = self._failure or error
        requests, dones, self._requests, self._dones = self._requests, self._dones, [], []
        for done in dones:
            done(self._failure)
        self._take_turn()
        self.stop()
        return requests

    def wake(self) -> None:
        """Something happened here, so something may soon happen there: end the nap and be keen again."""
        self._active = self._loop.time()
        if self._napping:
            self._napping = False  # so that only one tick is ever due
            self._next.cancel()
            self._next = self._loop.call_soon(self._tick)

    def is_woken(self, woken: bool) -> None:
        """Whether whoever sends something to this rank also calls its `wake`."""
        self._woken = woken
        self.wake()

    def computing(self, busy: bool) -> None:
        self._computing = busy
        self.wake()

    def _take_turn(self) -> None:
        turns, self._turns = self._turns, []
        for turn in turns:
            resolve(turn, None)


def resolve(future: asyncio.Future, outcome: Any) -> None:
    """Give a future its outcome, or its exception, unless it is done already."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
