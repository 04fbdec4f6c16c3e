"""Each test starts with nothing compiled."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
