"""A device that is not there is refused, and what a rank computes on is told."""

import pytest

from pipelined.actors.device import check_device
from pipelined.errors import UsageError


def test_a_device_that_is_not_here_is_refused_with_those_that_are():
    check_device("cpu")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(UsageError, match=rf"no device here is called '{name}' \(.*\); take one of cpu"):
            check_device(name)
