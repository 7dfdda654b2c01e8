"""Links on the virtual clock. A link leads from one rank to another and carries one message at a time, in order.

The rule: a message holds its link for m·beta seconds and arrives alpha after it has left it, so short messages do not
hinder one another and long ones queue. Links with different ends never hinder one another, and neither do gradient
sums, which are priced by their own closed forms. Source: Hockney's alpha-beta model, with the gap of LogGP.
"""

from collections import defaultdict

from pipelined.simulation.machine import Machine


class VirtualLinks:
    """Every link of a machine, and how long each is held."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self._free: dict[tuple[int, int], float] = defaultdict(float)

    def travel(self, source: int, target: int, nbytes: float) -> float:
        """Seconds over a free link; none from a rank to itself."""
        if source == target:
            return 0.0
        link = self._machine.link(source, target)
        return link.alpha + nbytes * link.beta

    def send(self, source: int, target: int, nbytes: float, now: float) -> float:
        """Carry a message as soon as those before it have left the link; returns when it arrives."""
        if source == target:
            return now
        link = self._machine.link(source, target)
        left = max(now, self._free[source, target]) + nbytes * link.beta
        self._free[source, target] = left
        return left + link.alpha
