"""The arithmetic of a slow link: when a message sent now has left, and when it arrives.

    sent at        left at                          arrives at
    |--- waits ---|--- bytes / rate ---|--- delay ± jitter ---|        plus one time-out for each loss

Order is kept and no message is dropped, as on a TCP connection; so a lost message delays those behind it. No clock and
no I/O.
"""

import random
from dataclasses import dataclass

from transports.emulation.options import LinkProfile

MIN_TIMEOUT_S = 0.2
MAX_LOSSES = 64
"""The most losses of one message in a row; their time-outs are longer than any run. A float cannot hold 2**1024."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One message's times: when its last byte leaves, and when it arrives."""

    departure: float
    arrival: float


class LinkTiming:
    """When messages leave and arrive, in one direction between two ends.

    Args:
        ends: the ranks or names of sender and receiver; with the seed they determine losses and jitter.
    """

    def __init__(self, profile: LinkProfile, ends: tuple[int | str, int | str]):
        self._profile = profile
        self._random = random.Random(f"{profile.seed}: {ends[0]} to {ends[1]}")
        self._departed = self._arrived = float("-inf")

    def passage(self, now: float, nbytes: float) -> Passage:
        """The times of a message that is sent now, behind all earlier messages."""
        self._departed = max(now, self._departed) + nbytes / self._profile.rate
        self._arrived = max(self._arrived, self._departed + self._transit_seconds())
        return Passage(self._departed, self._arrived)

    def _transit_seconds(self) -> float:
        """Seconds between leaving and arrival, with random losses and jitter."""
        profile = self._profile
        timeouts = 0
        while timeouts < MAX_LOSSES and self._random.random() < profile.loss:
            timeouts += 1
        waited = (2**timeouts - 1) * retransmission_timeout(profile)  # each time-out is twice the one before
        return waited + profile.delay + profile.jitter * self._random.uniform(-1, 1)


def retransmission_timeout(profile: LinkProfile) -> float:
    """Seconds after which a sender retransmits: a round trip and four times its variation (at least 0.2 s).

    Source: RFC 6298, section 2, with Linux's least variation; doubling is its section 5.5.
    """
    return 2 * profile.delay + max(4 * profile.jitter, MIN_TIMEOUT_S)
