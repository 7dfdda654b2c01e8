"""How long an answer is waited for: as long as answers were seen to take, and much longer. Never a constant.

Until enough was seen somebody else is asked after many leases, later each time: leases end the wait for who is silent
altogether. Nobody is late before his lease would be, for a busy machine is no lost one.
"""

from collections import deque
from statistics import median

KEPT = 64
ENOUGH = 5
DEVIATIONS = 10.0
MULTIPLE = 4.0
UNKNOWN = 10.0
"""Times the least that an answer is waited for of which nothing is known: it may be the first, and long."""


class Patience:
    """Answer times of one kind of question to one stage, whoever answered.

    Args:
        least: seconds that are never too long.
        enough: answers that must have been seen before any can be late.
    """

    def __init__(self, least: float, enough: int = ENOUGH) -> None:
        self._least, self._enough = least, enough
        self._seen: deque[float] = deque(maxlen=KEPT)
        self._limit: float | None = None

    def observe(self, seconds: float) -> None:
        """An answer took so long."""
        self._seen.append(seconds)
        self._limit = None

    def limit_after(self, late: int) -> float:
        """Seconds after which an answer is late, after so many others that were: there always is a limit."""
        return UNKNOWN * self._least * 2**late if self.limit is None else self.limit

    @property
    def limit(self) -> float | None:
        """Seconds after which an answer is late: the median and ten median deviations, four medians at least.

        Cost: two medians for each answer seen, however often this is asked.
        """
        if self._limit is None and len(self._seen) >= self._enough:
            middle = median(self._seen)
            deviation = median(abs(seconds - middle) for seconds in self._seen)
            self._limit = max(self._least, MULTIPLE * middle, middle + DEVIATIONS * deviation)
        return self._limit
