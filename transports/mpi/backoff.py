"""Back-off between two polls: how long a waiting rank naps. Arithmetic only; no loop and no clock.

Why naps: torch in a thread runs 2 to 3 times slower beside a loop that spins (because of the interpreter's lock), but
only 0 to 3 % slower beside a loop that polls each millisecond; and 64 spinning ranks on 2 cores leave no core for work.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PollBackoff:
    """How long to nap between two polls; all in seconds.

    Args:
        keen: time to poll without naps after the last event; between polls the rank only yields its core.
        hurried: the same for an urgent wait, as in a collective's inner loop, or after a doorbell rang.
        shortest: the first nap.
        longest: the maximum nap.
        computing: the minimum nap while this rank computes; there is no keen polling then.
        moment: how long a waiting task may first poll by itself (`ProgressEngine.poll_for`), blocking the loop.
        settling: between announcing sleep and the next poll; the loop runs other work meanwhile.
        asleep: the nap while no request is pending and all peers wake this rank when they send.
        restless: quiet time required for that: the library may not see at once the message it was woken for.
        share: a nap lasts this share of the quiet time so far, which bounds the relative delay that it causes.
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
    def on_node(cls, ranks: int, cores: int) -> "PollBackoff":
        """Keen polling if every rank has a core; the more ranks share a core, the longer the naps, up to 20 ms.

        A poll costs about 30 µs; with these naps, polling takes at most a quarter of the cores. Naps in the inner loop
        of a collective made it up to 2.5 times slower with 4 ranks on 2 cores.
        """
        if ranks <= cores:
            return cls()
        longest = min(ranks / cores / 8 * 1e-3, 20e-3)
        return cls(keen=0.0, hurried=0.5e-3, moment=0.0, settling=50e-6, longest=longest)

    def nap(self, quiet: float, computing: bool, urgent: bool = False, asleep: bool = False) -> float:
        """Seconds to nap after this many quiet seconds; 0: poll again after one turn of the loop."""
        if quiet < (self.hurried if urgent else self.keen) and not computing:
            return 0.0
        if asleep and quiet > self.restless:
            return self.asleep
        shortest = self.computing if computing else self.shortest
        return max(shortest, min(quiet * self.share, self.longest))
