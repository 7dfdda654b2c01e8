"""When the parts of one sum are sent: at once, or evenly over the time in which the next step is computed."""

from pipelined.aio.clock import Clock


class Spread:
    """Delays the parts of a sum that is not urgent: a link full of gradients delays the next step's activations.

    Args:
        seconds: from now until the last part; 0: every part is sent at once.
    """

    def __init__(self, clock: Clock, seconds: float = 0.0):
        self._clock = clock
        self._seconds = seconds
        self._began = clock.now()

    async def wait_for(self, share: float) -> None:
        """Wait until this share of the time is over."""
        left = self._began + share * self._seconds - self._clock.now()
        if left > 0:
            await self._clock.sleep(left)
