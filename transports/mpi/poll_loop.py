"""Back-off between two polls: how long a waiting rank naps. Arithmetic only; no loop and no clock.

Why naps: torch in a thread runs 2 to 3 times slower beside a loop that spins (because of the interpreter's lock), but
only 0 to 3 % slower beside a loop that polls each millisecond; and 64 spinning ranks on 2 cores leave no core for work.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PollBackoff:
    """The length of the nap between two polls.

    Args:
        spin_s: time to poll without naps after the last event; between polls the rank only yields its core.
        urgent_spin_s: the same for an urgent wait, as in a collective's inner loop, or after a doorbell rang.
        min_nap_s: the first nap.
        max_nap_s: the maximum nap.
        computing_nap_s: the minimum nap while this rank computes; it then naps between all polls.
        inline_spin_s: how long a waiting task may first poll by itself (`spin_until`), blocking the loop.
        announce_s: between announcing sleep and the next poll; the loop runs other work meanwhile.
        sleep_s: the nap while no request is pending and all peers wake this rank when they send.
        quiet_before_sleep_s: quiet time required for that: MPI may report a message only some polls after the doorbell.
        nap_fraction: a nap lasts this share of the quiet time so far, which bounds the relative delay that it causes.
    """

    spin_s: float = 1e-3
    urgent_spin_s: float = 1e-3
    min_nap_s: float = 100e-6
    max_nap_s: float = 1e-3
    computing_nap_s: float = 1e-3
    inline_spin_s: float = 50e-6
    announce_s: float = 0.0
    sleep_s: float = 50e-3
    quiet_before_sleep_s: float = 2e-3
    nap_fraction: float = 1 / 8

    @classmethod
    def on_node(cls, ranks: int, cores: int) -> "PollBackoff":
        """Polling without naps if every rank has a core; the more ranks share a core, the longer the naps, up to 20 ms.

        A poll costs about 30 µs; with these naps, polling takes at most a quarter of the cores. Naps in the inner loop
        of a collective made it up to 2.5 times slower with 4 ranks on 2 cores.
        """
        if ranks <= cores:
            return cls()
        max_nap_s = min(ranks / cores / 8 * 1e-3, 20e-3)
        return cls(spin_s=0.0, urgent_spin_s=0.5e-3, inline_spin_s=0.0, announce_s=50e-6, max_nap_s=max_nap_s)

    def nap(self, quiet: float, computing: bool, urgent: bool = False, asleep: bool = False) -> float:
        """Seconds to nap after this many quiet seconds; 0: poll again after one turn of the loop."""
        if quiet < (self.urgent_spin_s if urgent else self.spin_s) and not computing:
            return 0.0
        if asleep and quiet > self.quiet_before_sleep_s:
            return self.sleep_s
        shortest = self.computing_nap_s if computing else self.min_nap_s
        return max(shortest, min(quiet * self.nap_fraction, self.max_nap_s))
