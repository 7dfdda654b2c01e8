"""The documented limits of seconds after which a machine that vanishes is noticed.

Almost all of it is waiting, with room for a busy core, so other tests may run beside it, and it begins early.
"""

import pytest

from tests.unit.transports.tcp.test_cut_links import check, outcomes


@pytest.mark.full
def test_the_limits_of_the_code_hold_between_machines():
    check(outcomes("--full"), idle=15.0, connecting=15.0, sending=60.0, late=20.0)
