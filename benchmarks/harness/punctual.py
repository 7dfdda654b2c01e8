"""The clock of an emulated device on a real machine. No torch, so that processes that need none start at once."""

from pipelined.aio.clock import RealClock

EARLY_S = 150e-6
"""The end of a wait that is passed awake."""


class PunctualClock(RealClock):
    """Wakes a little early and lets the rest pass awake: a device is done at its time, however late timers are."""

    async def sleep(self, seconds: float) -> None:
        end = self.now() + seconds
        await super().sleep(max(0.0, seconds - EARLY_S))
        while self.now() < end:
            pass
