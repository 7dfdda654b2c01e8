"""Measured reply times: what is expected, and the time-outs computed from them. A time-out doubles with each retry.

`Average` is the expectation by which a trainer chooses peers. `RoundTrip` tracks the mean and its variation, for a
client and one server. `TimeoutEstimator` uses the median and the median deviation of the last replies, for requests
that make a peer compute. A busy machine is not lost, so no reply counts as late before the time of a lease. `Backoff`
gives the pauses between attempts.

Source: RFC 6298, Computing TCP's Retransmission Timer, section 2.
"""

from collections import deque
from statistics import median

FIRST_S = 1.0
"""Seconds of the time-out before any reply was measured, as in RFC 6298."""
MIN_S = 0.25
"""Seconds of the shortest time-out: a process that computes may delay its replies by this much."""
KEPT = 64
ENOUGH = 5
DEVIATIONS = 10.0
MULTIPLE = 4.0
MAX_DOUBLINGS = 64
"""Times that a time-out doubles, far beyond every patience: a float cannot hold 2**1024."""
UNKNOWN = 10.0
"""The time-out before a kind of request was measured, as a multiple of `least`: the first reply may take long."""


class Average:
    """An exponential moving average without the bias of its first value: after n values their weights add up to 1.

    Args:
        smoothing: weight of the newest value, in (0, 1].
    """

    def __init__(self, smoothing: float):
        if not 0 < smoothing <= 1:
            raise ValueError(f"the smoothing is no share of one (it is {smoothing}); take one in (0, 1]")
        self._smoothing, self._sum, self._weight = smoothing, 0.0, 0.0

    def add(self, value: float) -> None:
        keep = 1 - self._smoothing
        self._sum = keep * self._sum + self._smoothing * value
        self._weight = keep * self._weight + self._smoothing

    @property
    def value(self) -> float | None:
        """The average; None before the first value."""
        return self._sum / self._weight if self._weight else None


class RoundTrip:
    """The smoothed reply time and its variation, in seconds.

    Attributes:
        seen: whether any reply was measured.
    """

    def __init__(self) -> None:
        self._mean = self._variation = 0.0
        self.seen = False

    def add(self, seconds: float) -> None:
        """Add the time of a reply to a request that was sent only once."""
        if self.seen:
            self._variation += (abs(seconds - self._mean) - self._variation) / 4
            self._mean += (seconds - self._mean) / 8
        else:
            self.seen, self._mean, self._variation = True, seconds, seconds / 2

    @property
    def timeout(self) -> float:
        """Seconds after which a request times out."""
        return max(MIN_S, self._mean + 4 * self._variation) if self.seen else FIRST_S


class TimeoutEstimator:
    """The reply times of one kind of request to one stage, from any of its peers.

    Args:
        least: seconds up to which no reply is late.
        enough: replies to measure before any reply can be late.
    """

    def __init__(self, least: float, enough: int = ENOUGH) -> None:
        self._least, self._enough = least, enough
        self._seen: deque[float] = deque(maxlen=KEPT)
        self._limit: float | None = None

    def observe(self, seconds: float) -> None:
        """Add the time of a reply, in seconds."""
        self._seen.append(seconds)
        self._limit = None

    def limit_after(self, late: int) -> float:
        """Seconds after which a reply is late, if `late` replies were late before; never None."""
        return UNKNOWN * self._least * 2 ** min(late, MAX_DOUBLINGS) if self.limit is None else self.limit

    @property
    def limit(self) -> float | None:
        """Seconds after which a reply is late: the median and ten median deviations, at least four medians.

        Cost: two medians for each observed reply, however often this is read.
        """
        if self._limit is None and len(self._seen) >= self._enough:
            middle = median(self._seen)
            deviation = median(abs(seconds - middle) for seconds in self._seen)
            self._limit = max(self._least, MULTIPLE * middle, middle + DEVIATIONS * deviation)
        return self._limit


class Backoff:
    """Pauses between attempts: the first, then each twice as long as the one before.

    Args:
        first, most: seconds of the first pause and of the longest.
    """

    def __init__(self, first: float, most: float):
        if not 0 < first <= most:
            raise ValueError(f"pauses cannot grow from {first} to {most} s; let 0 < first <= most")
        self._next, self._most = first, most

    def next(self) -> float:
        """Seconds of the next pause."""
        pause, self._next = self._next, min(2 * self._next, self._most)
        return pause
