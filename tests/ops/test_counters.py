"""Counts of calls by implementation: of the kernels, of the references, and since a moment."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch

import fxrewrite
from fxrewrite.ops.counters import CallsSince, counters, reset_counters
from fxrewrite.ops.library import load_native

X, W = torch.randn(3, 64), torch.randn(32, 64)


@pytest.fixture(autouse=True)
def _zero():
    reset_counters()
    yield
    reset_counters()


def call(times=1, x=X, w=W):
    for _ in range(times):
        torch.ops.fxrewrite.linear(x, w, None)


def total():
    return sum(counters().get("linear", {}).values())


def test_every_call_is_counted():
    call(3)
    assert total() == 3
    assert fxrewrite.counters() == counters()
    reset_counters()
    assert counters() == {}


@pytest.mark.skipif(load_native() is not None, reason="the native library is not at hand")
def test_an_input_that_no_kernel_takes_is_a_reference_call():
    call(2, X.double(), W.double())
    assert counters() == {"linear": {"reference": 2}}


def test_fake_tensors_are_not_counted():
    call(1, X.to("meta"), W.to("meta"))
    assert counters() == {}


def test_without_the_native_library_the_references_are_counted():
    code = """if True:
        import torch, fxrewrite
        for _ in range(2):
            torch.ops.fxrewrite.linear(torch.ones(3, 4), torch.ones(5, 4), None)
        print(fxrewrite.counters())
        fxrewrite.reset_counters()
        print(fxrewrite.counters())"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FXREWRITE_ISA": "none"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == ["{'linear': {'reference': 2}}", "{}"], ran.stderr


def test_since_a_moment():
    call(2)
    since = CallsSince()
    assert since() == {}
    call(3)
    assert sum(since()["linear"].values()) == 3
    reset_counters()
    call()
    assert sum(since()["linear"].values()) == 1
    for other in (copy.deepcopy(since), pickle.loads(pickle.dumps(since))):
        assert other() == {}


def test_threads():
    threads = [threading.Thread(target=call, args=(200,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total() == 800


@pytest.mark.usefixtures("any_kernel")
def test_the_report_has_them_after_a_run():
    model = torch.nn.Linear(64, 32).requires_grad_(False)
    fast = fxrewrite.rewrite(model, (X,))
    call()  # before: not of this model
    assert fast.report.calls == {}
    assert "Calls since" not in str(fast.report)
    for _ in range(2):
        fast(X)
    assert sum(fast.report.calls["linear"].values()) == 2
    assert fast.report.to_dict()["calls"] == fast.report.calls
    (implementation,) = fast.report.calls["linear"]
    assert f"linear by {implementation}: 2" in str(fast.report)
    assert copy.deepcopy(fast).report.calls == {}
