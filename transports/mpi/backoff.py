"""Back-off between two polls: how long a waiting rank naps. Arithmetic only, no loop and no clock.

Why naps at all: torch in a thread beside a loop that spins runs 2 to 3 times slower (the interpreter's lock), beside
one that polls each millisecond 0 to 3 %; and 64 ranks that spin on 2 cores leave no core for the work.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to nap between two polls; all in seconds.

    Args:
        keen: how long to poll without napping after anything has happened, only letting other processes go first.
        hurried: the same while a wait is urgent, as in a collective's inner loop, or after a doorbell rang.
        shortest: the first nap.
        longest: no nap is longer.
        computing: while this rank computes, no nap is shorter, and there is no keen polling.
        moment: how long a waiting task may poll by itself first (`ProgressEngine.poll_for`); it takes the loop's time.
        settling: between announcing sleep and the poll that follows; the loop has other work meanwhile.
        asleep: the nap while nothing is under way here and all peers wake this rank when they send something.
        restless: how quiet it must have been for that; a library may not see at once what it was woken for.
        share: a nap takes this share of the quiet time so far, which bounds the relative delay it can cause.
    """

    keen: float = 1e-3
    hurried: float = 1e-3
    shortest: float = 100e-6
    longest: float = 1e-3
    computing: float = 1e-3
    moment: float = 50e-6
    settling: float = 0.0
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
        longest = min(ranks / cores / 8 * 1e-3, 20e-3)
        return cls(keen=0.0, hurried=0.5e-3, moment=0.0, settling=50e-6, longest=longest)

    def nap(self, quiet: float, computing: bool, urgent: bool = False, asleep: bool = False) -> float:
        """The nap due after so many quiet seconds; 0 means to ask again as soon as the loop has had its turn."""
        if quiet < (self.hurried if urgent else self.keen) and not computing:
            return 0.0
        if asleep and quiet > self.restless:
            return self.asleep
        shortest = self.computing if computing else self.shortest
        return max(shortest, min(quiet * self.share, self.longest))
