"""A retry that ends without success reports the last error."""

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.directory import CutOff
from pipelined.directory.retry import NoReply, Retry


class Oversleeps(VirtualClock):
    """As a machine's clock does."""

    async def sleep(self, seconds):
        await super().sleep(seconds + 0.004)


def test_the_last_error_is_reported_after_long_sleeps():
    async def unreachable():
        await VirtualClock().sleep(0.001)
        raise NoReply("connection refused")

    async def ask(patience):
        with pytest.raises(CutOff, match="last: connection refused"):
            await Retry("tcp://there", Oversleeps(), patience).run(unreachable)

    for milliseconds in range(100, 200, 2):
        run_virtual(ask(milliseconds / 1e3))
