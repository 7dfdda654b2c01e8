"""What holds for all tests of Ravnest."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread):
    """Every test here computes on one thread."""
