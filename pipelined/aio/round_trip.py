"""How long an answer takes, as observed. The rule: what is waited for follows what was seen, and doubles in silence.

Source: RFC 6298, Computing TCP's Retransmission Timer, section 2.
"""

FIRST_S = 1.0
"""What is waited before anything was seen, as there."""
LEAST_S = 0.25
"""Nobody is taken to be silent sooner: processes that compute are late by that much."""


class RoundTrip:
    """The smoothed time of an answer, and how much it varies; all in seconds.

    Attributes:
        seen: whether there was one.
    """

    def __init__(self) -> None:
        self._mean = self._variation = 0.0
        self.seen = False

    def add(self, seconds: float) -> None:
        """An answer to a question that was asked once has come after so long."""
        if self.seen:
            self._variation += (abs(seconds - self._mean) - self._variation) / 4
            self._mean += (seconds - self._mean) / 8
        else:
            self.seen, self._mean, self._variation = True, seconds, seconds / 2

    @property
    def silence(self) -> float:
        """Who has not answered for so long is not expected to."""
        return max(LEAST_S, self._mean + 4 * self._variation) if self.seen else FIRST_S
