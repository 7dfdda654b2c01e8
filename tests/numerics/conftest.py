"""What holds for all tests of numbers."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Many ranks in one process must not fight over two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
