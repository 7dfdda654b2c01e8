"""Measured reply times: what is expected, and the time-outs computed from them.

`Average` is the expectation by which a trainer chooses peers. `RoundTrip` tracks the mean and its variation, for a
client and one server; its caller doubles the time-out with each retry. `TimeoutEstimator` uses the median and the
median deviation of the last replies, for requests that make a peer compute; it doubles only the time-out before any
was measured. A busy machine is not lost, so none times out before the time of a lease. `Backoff` gives the pauses
between attempts.

Source: RFC 6298, Computing TCP's Retransmission Timer, section 2.
"""

from collections import deque
from statistics import median

FIRST_TIMEOUT_S = 1.0
"""Seconds of the time-out before any reply was measured, as in RFC 6298."""
MIN_TIMEOUT_S = 0.25
"""Seconds of the shortest time-out: a process that computes may delay its replies by this much."""
SAMPLES, MIN_SAMPLES = 64, 5
"""Replies of which the times are kept, and before which no time-out is computed of them."""
MEDIANS, DEVIATIONS = 4.0, 10.0
"""The time-out of a request that makes a peer compute is the larger of this many medians, and of one median plus this
many deviations."""
MAX_DOUBLINGS = 64
"""Times that a time-out doubles, far beyond every patience: a float cannot hold 2**1024."""
UNMEASURED = 10.0
"""The time-out before a kind of request was measured, as a multiple of `min_timeout`: the first reply may take long."""


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
        is_measured: whether any reply was measured.
    """

    def __init__(self) -> None:
        self._mean = self._variation = 0.0
        self.is_measured = False

    def add(self, seconds: float) -> None:
        """Add the time of a reply to a request that was sent only once."""
        if self.is_measured:
            self._variation += (abs(seconds - self._mean) - self._variation) / 4
            self._mean += (seconds - self._mean) / 8
        else:
            self.is_measured = True
            self._mean = seconds
            self._variation = seconds / 2

    @property
    def timeout(self) -> float:
        """Seconds after which a request times out."""
        return max(MIN_TIMEOUT_S, self._mean + 4 * self._variation) if self.is_measured else FIRST_TIMEOUT_S


class TimeoutEstimator:
    """The reply times of one kind of request to one stage, from any of its peers.

    Args:
        min_timeout: seconds up to which no request times out.
        min_samples: replies to measure before any request can time out.
    """

    def __init__(self, min_timeout: float, min_samples: int = MIN_SAMPLES) -> None:
        self._min_timeout, self._min_samples = min_timeout, min_samples
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._timeout: float | None = None

    def observe(self, seconds: float) -> None:
        """Add the time of a reply, in seconds."""
        self._samples.append(seconds)
        self._timeout = None

    def timeout_after(self, timeouts: int) -> float:
        """Seconds after which a request times out; while too few are measured, doubled by each time-out before it."""
        if self.timeout is not None:
            return self.timeout
        return UNMEASURED * self._min_timeout * 2 ** min(timeouts, MAX_DOUBLINGS)

    @property
    def timeout(self) -> float | None:
        """Seconds after which a request times out: the median and ten median deviations, at least four medians.

        Cost: two medians for each observed reply, however often this is read.
        """
        if self._timeout is None and len(self._samples) >= self._min_samples:
            middle = median(self._samples)
            deviation = median(abs(seconds - middle) for seconds in self._samples)
            self._timeout = max(self._min_timeout, MEDIANS * middle, middle + DEVIATIONS * deviation)
        return self._timeout


class Backoff:
    """Pauses between attempts: the first, then each twice as long as the one before.

    Args:
        first_pause, max_pause: seconds of the first pause and of the longest.
    """

    def __init__(self, first_pause: float, max_pause: float):
        if not 0 < first_pause <= max_pause:
            raise ValueError(
                f"pauses cannot grow from {first_pause} to {max_pause} s; let 0 < first_pause <= max_pause"
            )
        self._next_pause, self._max_pause = first_pause, max_pause

    def next(self) -> float:
        """Seconds of the next pause."""
        pause, self._next_pause = self._next_pause, min(2 * self._next_pause, self._max_pause)
        return pause
