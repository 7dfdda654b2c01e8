"""The clock of an emulated device on a real machine. No torch, so that processes that need none start at once."""

from pipelined.aio.clock import RealClock


class PunctualClock(RealClock):
    """Wakes a little early and lets the rest pass awake: a device is done at its time, however late timers are.

    Args:
        early: seconds; the loop takes them for other things otherwise.
    """

    def __init__(self, early: float = 150e-6):
        self._early = early

    async def sleep(self, seconds: float) -> None:
        end = self.now() + seconds
        await super().sleep(max(0.0, seconds - self._early))
        while self.now() < end:
            pass
