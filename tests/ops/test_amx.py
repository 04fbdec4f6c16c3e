"""The kernels on tiles, in a process where the AMX emulator executes them: see test_isa.py, which starts it.

Here are what the ops' own tests do not see: which instructions are executed, and that tiles are released.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxrewrite
from fxrewrite.ops import fp8_linear as fp8_definition
from fxrewrite.ops.counters import counters, reset_counters
from fxrewrite.ops.isa import active_isa
from tests.support import amx
from tests.support.contract import check

if active_isa() != "amx_bf16":
    pytest.skip("run by test_isa.py under the emulator", allow_module_level=True)

BF16 = torch.bfloat16
linear, fp8_linear, sdpa = (getattr(torch.ops.fxrewrite, n) for n in ("linear", "fp8_linear", "sdpa"))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def executed(call) -> dict[str, int]:
    """What instructions a call takes, by kind."""
    amx.reset()
    call()
    return {name: count for name, count in amx.total().instructions.items() if count}


@pytest.mark.parametrize("m", [5, 16, 17, 32, 33, 48, 77])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 32), (33, 72), (70, 80), (40, 515), (31, 1025)])
def test_linear(m, n, k):
    x, weight, bias = random(m, k), random(n, k, seed=1), random(n, seed=2)
    exact = F.linear(x.double(), weight.double(), bias.double())
    check(linear(x, weight, bias), F.linear(x, weight, bias), exact)
    codes = weight.to(torch.float8_e4m3fn)
    check(
        fp8_linear(x, codes, None, bias),
        fp8_definition.reference(x, codes, None, bias),
        F.linear(x.double(), codes.double(), bias.double()),
    )


@pytest.mark.parametrize(("n", "k"), [(16, 32), (33, 72), (40, 515), (31, 1025)])
def test_linear_of_floats_at_quality_high(n, k):
    x, weight, bias = (t.float() + 2.0**-12 for t in (random(77, k), random(n, k, seed=1), random(n, seed=2)))
    assert "tdpbf16ps" not in executed(lambda: linear(x, weight, bias))
    with fxrewrite.quality("high"):
        assert executed(lambda: linear(x, weight, bias))["tdpbf16ps"] >= -(-77 // 16) * -(-n // 16) * (
            k // 32
        )
        high = linear(x, weight, bias)
    x, weight = x.bfloat16().double(), weight.bfloat16().double()
    size = x.abs() @ weight.abs().T + bias.abs()
    assert ((high - F.linear(x, weight, bias.double())).abs() <= size * (k + 2) * 2.0**-24).all()


@pytest.mark.parametrize("k", [64, 72, 96, 112])
def test_no_product_too_many(k):
    """Whole tiles, and depths that are equal steps: as few products as there can be, a load for each."""
    x, weight = random(64, k), random(96, k)
    done = executed(lambda: linear(x, weight))
    least = (64 // 16) * (96 // 16) * -(-k // 32)
    assert done["tdpbf16ps"] == least
    assert done["tileloadd"] == least  # two by two: each of four loads meets two products
    assert done["ldtilecfg"] == done["tilerelease"] == 1


def test_the_rest_of_rows_columns_and_depth():
    x, weight = random(33, 72 + 1), random(17, 72 + 1)
    done = executed(lambda: linear(x, weight))
    assert done["tdpbf16ps"] == 3 * 2 * (2 + 1)
    assert amx.total().multiplied_rows == 3 * 17 * (2 + 1)  # a row of W each, not sixteen


def test_long_depth_continues_the_sums_in_memory():
    x, weight = random(32, 1024), random(32, 1024)
    done = executed(lambda: linear(x, weight))
    assert done["tdpbf16ps"] == 4 * 32
    assert done["tilezero"] == 4  # once; then the sums of 512 are loaded again
    assert done["tileloadd"] == 4 * 32 + 4
    assert done["tilestored"] == 8


FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@pytest.mark.parametrize("format", FORMATS)
def test_fp8_takes_the_instructions_of_bf16(format):
    x, weight = random(48, 160), random(64, 160)
    wanted = executed(lambda: linear(x, weight))
    scale = torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) + 0.5
    assert executed(lambda: fp8_linear(x, weight.to(format))) == wanted
    assert executed(lambda: fp8_linear(x, weight.to(format), scale, None, (16, 32))) == wanted


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("k", [65, 160, 515, 1025])
def test_scales_along_the_depth(format, k):
    x, codes = random(48, k), random(70, k, seed=1).to(format)
    scale = torch.rand(5, -(-k // 32), generator=torch.Generator().manual_seed(2)) + 0.5
    spread = scale.double().repeat_interleave(16, 0)[:70].repeat_interleave(32, 1)[:, :k]
    check(
        fp8_linear(x, codes, scale, None, (16, 32)),
        fp8_definition.reference(x, codes, scale, None, (16, 32)),
        F.linear(x.double(), codes.double() * spread),
    )


def test_a_transposed_weight_is_packed():
    x, weight = random(64, 64), random(64, 64)
    done = executed(lambda: linear(x, weight.t()))
    assert done["tdpbf16ps"] == 32
    check(linear(x, weight.t()), x @ weight, x.double() @ weight.double())


def test_attention_and_linear_attention_are_on_tiles():
    q, k, v = (random(1, 2, 96, 64, seed=i) for i in range(3))
    done = executed(lambda: sdpa(q, k, v))
    assert done["tdpbf16ps"] == 2 * 2 * (6 * 6 * 2)  # two products of two heads
    ours, eager = sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v)
    check(ours, eager, F.scaled_dot_product_attention(q.double(), k.double(), v.double()))
    done = executed(lambda: torch.ops.fxrewrite.relu_linear_attention(q, k, v, eps=1e-6))
    assert done["tdpbf16ps"] == 2 * (4 * 4 * 3)  # the summary of keys and values; queries multiply in fp32


def test_few_rows_and_fp32_are_not():
    reset_counters()
    assert not executed(lambda: linear(random(4, 256), random(64, 256)))
    assert not executed(lambda: linear(torch.ones(64, 64), torch.ones(64, 64)))
    assert counters()["linear"] == {"amx_bf16:dot": 1, "amx_bf16:panel": 1}


def test_every_thread_releases_its_tiles():
    x, weight = random(200, 64), random(300, 64)
    threads = torch.get_num_threads()
    one = linear(x, weight)
    try:
        torch.set_num_threads(3)
        amx.reset()
        assert torch.equal(linear(x, weight), one)
    finally:
        torch.set_num_threads(threads)
    busy = [t for t in amx.threads() if t.instructions["ldtilecfg"]]
    assert len(busy) == 3
    for thread in busy:
        assert thread.instructions["tilerelease"] == 1
        assert not thread.configured
