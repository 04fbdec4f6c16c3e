"""The CUDA kernels of ``fp8_linear``, run on the CPU, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.ops import fp8_linear as definition
from tests.support.contract import check

BF16 = torch.bfloat16
FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)
INF, NAN = float("inf"), float("nan")


def exact(x, weight, scale=None, bias=None):
    decoded = weight.double() if scale is None else weight.double() * scale.double()
    return F.linear(x.double(), decoded, None if bias is None else bias.double())


def hold(shim, x, weight, scale=None, bias=None):
    check(
        shim.fp8_linear(x, weight, scale, bias),
        definition.reference(x, weight, scale, bias),
        exact(x, weight, scale, bias),
    )


def example(m: int, k: int, n: int, format=FORMATS[0], seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(m, k, generator=generator).to(BF16), torch.randn(n, generator=generator).to(BF16)
    return x, torch.randn(n, k, generator=generator).to(format), bias


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [1, 8, 9, 17, 33, 70, 128])
def test_number_of_rows(shim, counted, m, format):
    x, weight, bias = example(m, 208, 72, format)
    hold(shim, x, weight, torch.tensor(0.37), bias)
    hold(shim, x, weight, torch.linspace(0.01, 2.0, 72)[:, None])
    assert counted() == {"fp8_linear": {"cuda:stream": 2}}


@pytest.mark.parametrize(("n", "k"), [(1, 16), (15, 64), (17, 80), (64, 1040), (300, 32)])
@pytest.mark.parametrize("m", [1, 20])
def test_sizes_of_the_weight(shim, counted, m, n, k):
    x, weight, bias = example(m, k, n)
    hold(shim, x, weight, None, bias)
    assert counted() == {"fp8_linear": {"cuda:stream": 1}}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [130, 200])
def test_many_rows_are_the_frameworks(shim, counted, m, format):
    x, weight, bias = example(m, 64, 48, format)
    hold(shim, x, weight, torch.tensor(0.02), bias)
    hold(shim, x, weight, torch.linspace(0.1, 1.0, 48)[:, None])
    hold(shim, x.view(2, m // 2, 64), weight, None, bias)
    assert counted() == {"fp8_linear": {"cuda:decode": 3}}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [2, 130])
def test_every_code(shim, format, m):
    codes = torch.arange(256, dtype=torch.uint8).view(format)
    weight = codes[:, None].repeat(1, 16)
    weight[:, 1:] = 0
    ours, wanted = shim.fp8_linear(torch.ones(m, 16, dtype=BF16), weight)[-1], codes.to(BF16)
    assert torch.equal(ours.nan_to_num(1.5, 2.5, 3.5), wanted.nan_to_num(1.5, 2.5, 3.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, BF16])
def test_scale_dtypes(shim, dtype):
    x, weight, bias = example(3, 64, 32)
    for value in (0.3, 1e-5, 0.0, -2.0):
        hold(shim, x, weight, torch.tensor(value, dtype=dtype), bias)
    hold(shim, x, weight, torch.linspace(0.1, 0.9, 64, dtype=dtype)[::2, None], bias)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [3, 130])
def test_scales_that_overflow(shim, counted, m, format):
    """Scale times weight, rounded, is infinite or no number: so is what depends on it."""
    x, weight, bias = example(m, 64, 32, format)
    scale = torch.ones(32, 1)
    scale[3], scale[7], scale[9], scale[20] = INF, NAN, 3e38, -INF
    ours, usual = shim.fp8_linear(x, weight, scale, bias), definition.reference(x, weight, scale, bias)
    assert torch.equal(ours.isnan(), usual.isnan())
    assert torch.equal(ours.isinf(), usual.isinf())
    assert "reference" not in counted()["fp8_linear"]


def test_layouts(shim, counted):
    x, weight, bias = example(4, 64, 32)
    frame = torch.full((32, 128), 0x7F, dtype=torch.uint8).view(FORMATS[0])
    frame[:, 16:80] = weight
    hold(shim, x, frame[:, 16:80], None, bias.repeat_interleave(2)[::2])
    for rows in (x.t().contiguous().t(), x[:1].expand(4, 64), x.view(2, 2, 64).transpose(0, 1), x[0]):
        hold(shim, rows, weight, None, bias)
    off = torch.zeros(4 * 64 + 1, dtype=BF16)[1:].view(4, 64).copy_(x)
    hold(shim, off, weight, None, bias)
    assert counted() == {"fp8_linear": {"cuda:stream": 6}}


def test_specials_stay_in_their_rows(shim):
    x, weight, bias = example(11, 80, 40)
    x[2, 64], x[1, 0] = INF, NAN
    hold(shim, x, weight, torch.tensor(0.5), bias)


def test_what_no_kernel_takes_is_the_reference(shim, counted):
    x, weight, bias = example(3, 72, 32)
    cases = [
        (x, weight, None, bias),  # K is no multiple of 16
        (x[:, :64].float(), weight[:, :64].contiguous(), None, None),
        (x[:, :64], weight[:, 8:], None, bias),  # the address is no multiple of 16
        (x[:, :64], weight[:, :64].contiguous(), torch.rand(1, 64), bias),
        (x[:, :64], weight[:, :64].contiguous(), torch.rand(2, 4), bias, (16, 16)),
        (x[:, :64], weight[:, :64].contiguous(), torch.rand(1, 1), bias, (32, 64)),
        (x[:, :64], weight.t().contiguous().t()[:, :64], None, bias),
        (x[:0, :64], weight[:, :64].contiguous(), None, bias),
    ]
    for case in cases:
        assert torch.equal(shim.fp8_linear(*case), definition.reference(*case))
    assert counted() == {"fp8_linear": {"reference": len(cases)}}
