"""What every test of this room may count on."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
