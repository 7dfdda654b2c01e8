"""When the parts of a sum go for which nobody waits: spread over the time in which the next step is computed.

The one rule: a line that sums fill holds up the answers that the next step is made of, so a sum that need not be soon
takes its time. How long is a share of what a step was seen to take, never a constant.
"""

from pipelined.aio.clock import Clock


class Spread:
    """The moments of one sum's parts at one member, from now on.

    Args:
        seconds: until the last of them; 0: all are now.
    """

    def __init__(self, clock: Clock, seconds: float = 0.0):
        self._clock, self._seconds, self._began = clock, seconds, clock.now()

    async def wait_for(self, share: float) -> None:
        """Wait until this share of the time is over."""
        left = self._began + share * self._seconds - self._clock.now()
        if left > 0:
            await self._clock.sleep(left)
