"""The timer of moves: the median of each phase's passes."""

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.training.teams.move_timer import MoveTimer


class Slow:
    """Carries a piece in as many seconds as it says."""

    rank = 0

    def __init__(self, clock):
        self.clock = clock

    async def carry(self, path, array):
        await self.clock.sleep(array)
        return array


def test_a_phase_takes_the_median_of_its_passes_and_a_resumed_one_goes_on():
    async def work():
        clock = VirtualClock()
        timer = MoveTimer((0,), Slow(clock), clock)
        for seconds in (100.0, 1.0, 2.0):
            timer.start_pass("backward")
            await timer.carry(None, seconds)
            timer.start_pass("forward")
            await timer.carry(None, 0.5)
            timer.resume("backward")
            await timer.carry(None, 0.25)
        return timer.seconds

    assert run_virtual(work()) == {"backward": 2.25, "forward": 0.5}
