"""Links on the virtual clock: one from each rank to each other rank; a link carries one message at a time, in order.

A message of m bytes occupies its link for m·beta seconds and arrives alpha seconds after that. So short messages do not
delay one another, and long ones queue. Different links do not delay one another. Gradient sums do not use these links:
their own closed forms price them. Source: Hockney's alpha-beta model, with the gap of LogGP.
"""

from collections import defaultdict
from collections.abc import Sequence

from collectives import Links
from pipelined.simulation.machine import Machine


class VirtualLinks:
    """The links of a machine, and the time until which each is occupied.

    A message between teams goes from member to member at once; it has arrived when the slowest of them has.

    Args:
        members: the members with links to compare; only 0 where all links are the same.
    """

    def __init__(self, machine: Machine, members: Sequence[int] = (0,)):
        self._machine, self._members = machine, members
        self._free_from: dict[tuple[int, int], float] = defaultdict(float)

    def travel(self, source: int, target: int, nbytes: float) -> float:
        """Seconds of a message over a free link; 0 from a rank to itself.

        Args:
            source, target: the first members of two teams.
        """
        if source == target:
            return 0.0
        link = self._link(source, target, nbytes)
        return link.alpha + nbytes * link.beta

    def send(self, source: int, target: int, nbytes: float, now: float) -> float:
        """Send a message once the link is free of earlier ones; returns the time of its arrival, in seconds."""
        if source == target:
            return now
        link = self._link(source, target, nbytes)
        departure = max(now, self._free_from[source, target]) + nbytes * link.beta
        self._free_from[source, target] = departure
        return departure + link.alpha

    def _link(self, source: int, target: int, nbytes: float) -> Links:
        links = [self._machine.link(source + member, target + member) for member in self._members]
        return links[0] if len(links) == 1 else max(links, key=lambda link: link.alpha + nbytes * link.beta)
