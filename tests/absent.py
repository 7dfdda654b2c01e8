"""What a test does where a program or a package that it needs is not installed."""

import os

import pytest


def absent(reason):
    """Skip the test; under CI, which promises these programs, fail: a skipped test would pass for a run one.

    Raises:
        pytest.fail.Exception: the variable `CI` is set.
        pytest.skip.Exception: it is not.
    """
    if "CI" in os.environ:
        pytest.fail(f"{reason}; CI must install it", pytrace=False)
    pytest.skip(reason)
