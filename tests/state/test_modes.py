"""Modes of torch around a call of a rewritten model, and tracers that come upon one."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fxrewrite
from fxrewrite.ops.counters import counters, reset_counters
from tests.support.block import block, right, tokens

native = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Overriding(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def ops_of_ours(call) -> set[str]:
    reset_counters()
    call()
    return set(counters())


@native
@pytest.mark.parametrize("used_before", [False, True])
def test_a_dispatch_mode_changes_nothing_for_later_calls(used_before, any_kernel):
    fast = fxrewrite.rewrite(block())
    if used_before:
        fast(tokens())
    with Watching():
        assert torch.equal(fast(tokens()), block()(tokens()))
        assert any("while a TorchDispatchMode or a tracer is active" in note for note in fast.report.notes)
    assert ops_of_ours(lambda: right(fast, block())) == {"linear", "sdpa"}


def test_flops_are_those_of_the_original(any_kernel):
    fast = fxrewrite.rewrite(block())
    fast(tokens())
    counted = []
    for model in (fast, block()):
        with FlopCounterMode(display=False) as counter:
            model(tokens())
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] > 0


def test_a_function_mode(any_kernel):
    fast = fxrewrite.rewrite(block())
    with Overriding():
        right(fast, block())
    right(fast, block())


def test_vmap(any_kernel):
    fast, plain = (
        torch.vmap(lambda row, m=m: m(row[None])[0]) for m in (fxrewrite.rewrite(block()), block())
    )
    assert torch.equal(fast(tokens()), plain(tokens()))


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_sees_the_original(strict, any_kernel):
    fast = fxrewrite.rewrite(block())
    fast(tokens())
    program = torch.export.export(fast, (tokens(),), strict=strict)
    assert torch.equal(program.module()(tokens()), block()(tokens()))
    assert list(program.state_dict) == list(block().state_dict())
    assert len(fxrewrite.rewrite(program).report.matched) == 3


def test_jit_trace_sees_the_original(any_kernel):
    fast = fxrewrite.rewrite(block())
    fast(tokens())
    traced = torch.jit.trace(fast, (tokens(),), check_trace=False)
    assert torch.equal(traced(tokens()), block()(tokens()))


def test_symbolic_trace_sees_the_original(any_kernel):
    fast = fxrewrite.rewrite(block())
    graph = torch.fx.symbolic_trace(fast)
    assert torch.equal(graph(tokens()), block()(tokens()))
