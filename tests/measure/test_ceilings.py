"""The ceilings of a roofline: in units that make sense, and those of the dtype that is asked."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.measure import ceilings


@pytest.fixture
def small(monkeypatch):
    """Matrices of which the product takes no time, and a clock by which each piece of work takes 1 ms."""
    monkeypatch.setattr(ceilings, "_SIDE", 10)
    monkeypatch.setattr(ceilings, "_BUFFER", 4000)
    clock = iter(range(1000))
    monkeypatch.setattr(ceilings.time, "perf_counter", lambda: next(clock) / 1000)
    ceilings.measured.cache_clear()
    yield
    ceilings.measured.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_operations_and_bytes_a_second(small, dtype):
    found = ceilings.measured(dtype)
    assert (found.dtype, found.threads) == (dtype, torch.get_num_threads())
    assert found.peak == pytest.approx(2 * 10**3 / 1e-3)
    assert found.bandwidth == pytest.approx(4000 / 1e-3)
    assert ceilings.measured(dtype) is found  # once a process


def test_on_a_model_that_is_built_on_meta(small):
    with torch.device("meta"):
        assert ceilings.measured("float32").peak > 0
