"""A retry that ends without success reports the last error."""

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.membership.directory import CutOff
from pipelined.membership.directory.client.retry import NoReply, Retry


class Oversleeps(VirtualClock):
    """As a machine's clock does."""

    async def sleep(self, seconds):
        await super().sleep(seconds + 0.004)


def test_the_last_error_is_reported_after_long_sleeps_and_nothing_is_sent_after_the_deadline():
    async def ask(patience):
        async def unreachable():
            assert VirtualClock().now() < patience
            await VirtualClock().sleep(0.001)
            raise NoReply("connection refused")

        with pytest.raises(CutOff, match="last: connection refused"):
            await Retry("tcp://there", Oversleeps(), patience).run(unreachable)

    for milliseconds in range(100, 200, 2):
        run_virtual(ask(milliseconds / 1e3))


@pytest.mark.parametrize("patience", [1.0, 1.001, 1.0015])
def test_an_attempt_that_the_end_cut_short_is_not_the_reason(patience):
    """It was reported that nothing came within a millisecond, where nothing listened."""

    async def unreachable():
        await VirtualClock().sleep(0.002)
        raise NoReply("connection refused")

    class Halves(VirtualClock):
        """Sleeps until a millisecond before the end."""

        async def sleep(self, seconds):
            await super().sleep(max(0.0, patience - 0.001 - self.now()))

    async def ask():
        with pytest.raises(CutOff, match="last: connection refused"):
            await Retry("tcp://there", Halves(), patience).run(unreachable)

    run_virtual(ask())


def test_a_server_that_never_replies_is_a_time_out():
    async def silent():
        await VirtualClock().sleep(1e6)

    async def ask():
        with pytest.raises(CutOff, match=r"last: nothing came within \d"):
            await Retry("tcp://there", VirtualClock(), 5.0).run(silent)

    run_virtual(ask())


def test_a_patience_of_a_whole_lease_ends_as_cut_off():
    """After 1,024 attempts, 510 s, the doubled time-out was too large for a float."""

    async def unreachable():
        raise NoReply("connection refused")

    async def ask():
        with pytest.raises(CutOff, match="last: connection refused"):
            await Retry("tcp://there", VirtualClock(), 3600.0).run(unreachable)

    run_virtual(ask())
