"""Quality levels: what "high" lowers and by how much, and whose level it is."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from rich.console import Console
from torch import nn

import fxrewrite
import fxrewrite.ops
from fxrewrite.errors import UsageError
from fxrewrite.ops.counters import counters, reset_counters
from fxrewrite.ops.implementations import BF16_LEVELS
from fxrewrite.ops.isa import active_isa
from fxrewrite.quality import LEVELS
from fxrewrite.report.explain import render_site

needs_native = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
needs_bf16 = pytest.mark.skipif(
    active_isa() not in BF16_LEVELS, reason="no instructions for products of bfloat16: nothing is lowered"
)
BF16, F32 = torch.bfloat16, torch.float32
linear = torch.ops.fxrewrite.linear
U = 2.0**-8  # the relative error of rounding to bfloat16, whose significands have eight bits


@pytest.fixture(autouse=True)
def _no_sizes_of_earlier_tests():
    torch._dynamo.reset()


def operands(m=70, n=100, k=300, dtype=F32):
    g = torch.Generator().manual_seed(m + n + k)
    return tuple(torch.randn(shape, generator=g).to(dtype) for shape in ((m, k), (n, k), (n,)))


def bound(x, weight):
    """How far products of rounded operands, summed in float32, may be off: (1 + u)² - 1 of each product, and the
    rounding of k sums, of which each is off by 2^-24 relative to what was added up (Higham, 2002, section 4.2)."""
    size = x.double().abs() @ weight.double().abs().T
    return size * ((1 + U) ** 2 - 1 + x.shape[-1] * 2.0**-24 * (1 + U) ** 2)


def exact(x, weight, bias):
    return x.double() @ weight.double().T + bias.double()


def algorithms(op="linear"):
    """The algorithms that ran since the counters were reset."""
    return {name.rpartition(":")[2] for name in counters().get(op, {})}


# ----------------------------------------------------------------------------------------- what it lowers


@needs_bf16
@pytest.mark.parametrize("shape", [(70, 100, 300), (33, 16, 640), (200, 65, 33), (40, 17, 5000), (64, 64, 2)])
def test_linear_rounds_its_operands_and_nothing_else(shape):
    x, weight, bias = operands(*shape)
    want, lossless = exact(x, weight, bias), linear(x, weight, bias)
    reset_counters()
    with fxrewrite.quality("high"):
        high = linear(x, weight, bias)
    assert algorithms() == {"panel_bf16"}
    error, rounded = (high - want).abs(), exact(x.bfloat16(), weight.bfloat16(), bias)
    assert (error <= bound(x, weight) + want.abs() * 2.0**-23).all()
    # products of what is rounded already are exact: what remains is the error of float32 sums
    sums = x.double().abs() @ weight.double().abs().T * x.shape[-1] * 2.0**-24 * (1 + U) ** 2
    assert ((high - rounded).abs() <= sums + rounded.abs() * 2.0**-23).all()
    assert error.square().mean() > 100 * (lossless - want).square().mean()


@needs_bf16
@pytest.mark.parametrize("weight_layout", ["transposed", "strided"])
def test_any_layout(weight_layout):
    x, weight, bias = operands()
    x = torch.cat([x, x], -1)[:, : x.shape[1]]  # rows apart
    if weight_layout == "transposed":
        weight = weight.T.contiguous().T
    else:
        weight = torch.stack([weight, weight], -1)[..., 0]
    with fxrewrite.quality("high"):
        high = linear(x, weight, bias)
        assert torch.equal(high, linear(x.contiguous(), weight.contiguous(), bias))
    assert ((high - exact(x, weight, bias)).abs() <= bound(x, weight) + 1e-5).all()


@needs_bf16
def test_the_epilogue_stays_float32():
    x, weight, _ = operands()
    ones, residual = torch.ones(100), torch.full((70, 100), 2.0**-20)
    with fxrewrite.quality("high"):
        out = linear(x * 0, weight, ones, residual=residual)
    assert (out == 1 + 2.0**-20).all()


@needs_bf16
def test_specials_stay_where_they_are():
    x, weight, bias = operands()
    x[2, 5], x[3, 5], weight[7, 0] = float("inf"), float("nan"), float("-inf")
    with fxrewrite.quality("high"):
        high = linear(x, weight, bias)
    lossless = linear(x, weight, bias)
    for same in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(same(high), same(lossless))


@needs_native
@pytest.mark.parametrize(("m", "dtype"), [(1, F32), (4, F32), (1, BF16), (70, BF16), (70, torch.float16)])
def test_few_rows_and_narrow_types_are_not_lowered(m, dtype):
    inputs = operands(m, dtype=dtype)
    lossless = linear(*inputs)
    with fxrewrite.quality("high"):
        assert torch.equal(linear(*inputs), lossless)


@needs_bf16
def test_worker_threads_compute_at_the_level_of_their_caller():
    x, weight, bias = operands(300, 2000, 100)
    threads = torch.get_num_threads()
    with fxrewrite.quality("high"):
        try:
            torch.set_num_threads(1)
            one = linear(x, weight, bias)
            torch.set_num_threads(4)
            assert torch.equal(linear(x, weight, bias), one)
        finally:
            torch.set_num_threads(threads)


# -------------------------------------------------------------------------------------- whose level it is


def is_high() -> bool:
    """Does the operator, called now in this thread, round its operands?"""
    x, weight, bias = operands()
    rounded = linear(x.bfloat16().float(), weight.bfloat16().float(), bias)
    return torch.allclose(linear(x, weight, bias), rounded, rtol=0, atol=1e-4)


@needs_bf16
def test_nested_levels_and_exceptions():
    assert not is_high()
    with fxrewrite.quality("high"):
        assert is_high()
        with fxrewrite.quality("lossless"):
            assert not is_high()
            with fxrewrite.quality("high"):
                assert is_high()
        assert is_high()
        with fxrewrite.quality("exact"):
            assert not is_high()
        with pytest.raises(ZeroDivisionError), fxrewrite.quality("lossless"):
            raise ZeroDivisionError
        with pytest.raises(UsageError), fxrewrite.quality("low"):
            pass
        assert is_high()
    assert not is_high()


@needs_bf16
def test_threads_do_not_share_it():
    found = {}

    def work(name, level):
        met.wait()
        with fxrewrite.quality(level):
            for _ in range(20):
                found.setdefault(name, set()).add(is_high())

    def bystander():
        found["bystander"] = {is_high()}

    levels = {"one": "high", "two": "lossless", "three": "high"}
    met = threading.Barrier(len(levels))
    threads = [threading.Thread(target=work, args=item) for item in levels.items()]
    with fxrewrite.quality("high"):
        threads.append(threading.Thread(target=bystander))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"one": {True}, "two": {False}, "three": {True}, "bystander": {False}}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(300, 100).requires_grad_(False)

    def forward(self, x):
        return self.proj(x).relu()


def rewritten(**options):
    torch.manual_seed(0)
    plain = Layer()
    fast = fxrewrite.rewrite(plain, **options)
    x = operands()[0]
    assert not torch.equal(fast(x), torch.zeros(()))
    return plain, fast, x


@needs_bf16
def test_tasks_do_not_share_it():
    """Two tasks of one thread, each inside its level while the other runs."""
    _, fast, x = rewritten()
    with fxrewrite.quality("high"):
        at = {"high": fast(x)}
    at["lossless"] = fast(x)
    assert not torch.equal(at["high"], at["lossless"])

    async def work(level):
        with fxrewrite.quality(level):
            for _ in range(3):
                await asyncio.sleep(0)
                assert torch.equal(fast(x), at[level])
                assert not is_high()  # by hand: the thread's level, and that is not asked for
        await asyncio.sleep(0)
        assert torch.equal(fast(x), at["lossless"])

    async def both():
        await asyncio.gather(work("high"), work("lossless"), work("high"))

    asyncio.run(both())
    assert not is_high()


# -------------------------------------------------------------------------------------- rewritten models


@needs_bf16
@pytest.mark.parametrize("then", ["eager", "inductor"])
def test_switching_compiles_nothing_anew(then):
    plain, fast, x = rewritten(then=then)
    lossless = fast(x)
    compiled = dict(torch._dynamo.utils.counters["stats"])
    for level in (*LEVELS, *reversed(LEVELS)):
        reset_counters()
        with fxrewrite.quality(level):
            out = fast(x)
        if level == "exact":
            assert torch.equal(out, plain(x))
            assert algorithms() == set()
        else:
            assert torch.equal(out, lossless) == (level == "lossless")
            assert algorithms() == ({"panel_bf16"} if level == "high" else {"panel"})
    assert dict(torch._dynamo.utils.counters["stats"]) == compiled
    assert torch.equal(fast(x), lossless)


@needs_bf16
def test_the_first_call_may_be_at_high():
    torch.manual_seed(0)
    fast, x = fxrewrite.rewrite(Layer()), operands()[0]
    with fxrewrite.quality("high"):
        high = fast(x)
    assert not torch.equal(fast(x), high)


@needs_bf16
def test_an_exported_program_takes_the_level_of_its_thread():
    _, _, x = rewritten()
    program = fxrewrite.rewrite(torch.export.export(Layer(), (x,)))
    run = program.module()
    lossless = run(x)
    with fxrewrite.quality("high"):
        assert not torch.equal(run(x), lossless)
    assert torch.equal(run(x), lossless)


@needs_bf16
def test_the_report_says_what_is_lowered():
    _, fast, _ = rewritten()
    (site,) = (s for s in fast.report.sites if s.kind == "linear")
    assert site.lowered == "x and weight are rounded to bfloat16"
    assert f"at quality 'high': {site.lowered}" in render_site(fast.report, site, Console(width=200))


@pytest.mark.parametrize(("rows", "lowered"), [(2, 0), (15, 0), (16, 1)])
def test_the_report_says_nothing_where_nothing_is_lowered(rows, lowered):
    (site,) = fxrewrite.analyze(Layer(), (operands(rows)[0],)).sites
    assert bool(site.lowered) == (lowered and active_isa() in BF16_LEVELS)
