"""A peer's device is checked before the peer joins."""

import pytest

from pipelined.errors import UsageError
from pipelined.swarm.process.session import check_device


def test_a_device_that_is_not_here_is_refused_with_those_that_are():
    check_device("cpu")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(UsageError, match=rf"no device here is called '{name}' \(.*\); take one of cpu"):
            check_device(name)
