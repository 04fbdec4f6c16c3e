"""The float64 reference: a true oracle for models that cast inside."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.float64 import Float64Mode, NoReference, reference, run_float64, to_float64_


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def attention64(q, k, v, bias=0.0):
    q, k, v = q.double(), k.double(), v.double()
    return ((q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1)) @ v


class CastingAttention(nn.Module):
    """Hard-coded casts at each step, and a mask built in a fixed dtype."""

    def forward(self, q, k, v):
        scores = torch.matmul(q.to(torch.bfloat16), k.to(torch.bfloat16).mT) / math.sqrt(q.shape[-1])
        mask = torch.full((q.shape[-2], k.shape[-2]), float("-inf"), dtype=torch.float16).triu(1)
        p = (scores.float() + mask.float()).softmax(-1, dtype=torch.float32).type_as(v)
        out = torch.empty(v.shape, dtype=torch.bfloat16)
        out.copy_(p @ v)
        return out.half()


def test_hard_coded_casts_do_not_round():
    q, k, v = (
        torch.randn(2, 3, 8, 16, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3)
    )
    exact = reference(CastingAttention(), (q, k, v))
    bias = torch.full((8, 8), float("-inf"), dtype=torch.float64).triu(1)
    assert exact.dtype is torch.float64
    assert relative(exact, attention64(q, k, v, bias)) < 1e-14
    assert relative(CastingAttention()(q, k, v), exact) > 1e-3


@pytest.mark.parametrize("mask", [None, "bool", "float", "causal"])
def test_fused_attention_is_exact(mask):
    q, k, v = (torch.randn(1, 2, 9, 16, generator=torch.Generator().manual_seed(i)).half() for i in range(3))
    keep = torch.ones(9, 9, dtype=torch.bool).tril()
    bias = torch.zeros(9, 9, dtype=torch.float64).masked_fill(~keep, -torch.inf)

    class Net(nn.Module):
        def forward(self, q, k, v):
            m = {"bool": keep, "float": bias.half()}.get(mask)
            return F.scaled_dot_product_attention(q, k, v, m, is_causal=mask == "causal")

    exact = reference(Net(), (q, k, v))
    assert relative(exact, attention64(q, k, v, 0.0 if mask is None else bias)) < 1e-14


def test_fp8_weights_are_decoded_exactly():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            w = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
            self.w = nn.Parameter(w.to(torch.float8_e4m3fn), requires_grad=False)
            self.register_buffer("s", torch.tensor(0.3))

        def forward(self, x):
            return F.linear(x, self.w.to(torch.bfloat16) * self.s.to(torch.bfloat16))

    net, x = Net(), torch.randn(5, 16).bfloat16()
    want = x.double() @ (net.w.double() * net.s.double()).T
    assert relative(reference(net, (x,)), want) < 1e-14
    assert net.w.dtype is torch.float8_e4m3fn
    assert x.dtype is torch.bfloat16


def test_scaled_product_by_its_meaning():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            w = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
            self.w = nn.Parameter(w.to(torch.float8_e4m3fn), requires_grad=False)

        def forward(self, x):
            scale = (x.abs().amax() / 448).float()
            q = (x.float() / scale).to(torch.float8_e4m3fn)
            one = torch.tensor(0.5)
            return torch._scaled_mm(q, self.w.t(), scale_a=scale, scale_b=one, out_dtype=torch.bfloat16)

    net, x = Net(), torch.randn(16, 16).bfloat16()
    want = x.double() @ (net.w.double() * 0.5).T
    assert relative(reference(net, (x,)), want) < 1e-12


def test_tensors_outside_parameters_ties_and_constants():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8, bias=False)
            self.b = nn.Linear(8, 8, bias=False)
            self.b.weight = self.a.weight
            self.plain = torch.full((8,), 1 / 3)
            self.listed = [torch.full((8,), 1 / 7)]
            self.freqs = torch.polar(torch.ones(4), torch.arange(4.0))

        def forward(self, x):
            x = self.b(self.a(x)) * self.plain + self.listed[0]
            c = torch.view_as_complex(x.float().reshape(-1, 4, 2)) * self.freqs
            return torch.view_as_real(c).flatten(1).to(torch.float16)

    net = Net().half()
    wide = to_float64_(Net().half())
    assert wide.a.weight is wide.b.weight
    assert wide.listed[0].dtype is torch.float64
    assert wide.freqs.dtype is torch.complex128
    x = torch.randn(3, 8).half()
    out = reference(net, (x,))
    assert out.dtype is torch.float64
    assert relative(net(x), out) < 5e-3
    assert torch.get_default_dtype() is torch.float32


def test_every_floating_value_is_float64_inside():
    narrow = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            floating = isinstance(out, torch.Tensor) and out.is_floating_point() and not func.is_view
            if floating and out.dtype is not torch.float64:
                narrow.append(str(func))
            return out

    with torch.no_grad(), Float64Mode(), Spy():
        x = torch.ones(4, dtype=torch.float64)
        y = torch.arange(4) / 2 + torch.zeros(4, dtype=torch.bfloat16) + x.half().float()
        y = y.sum(dtype=torch.float16) + F.layer_norm(x, (4,)).bfloat16().mean(dtype=torch.float32)
    assert y.dtype is torch.float64
    assert not narrow


def test_bit_reinterpretation_has_no_reference():
    class Net(nn.Module):
        def forward(self, x):
            return x.view(torch.int16).view(torch.bfloat16)

    with pytest.raises(NoReference):
        run_float64(Net(), (torch.ones(4, dtype=torch.bfloat16),))


def test_discontinuous_models_differ_and_that_is_known():
    """Routing by rounded values: float64 decides otherwise, so no oracle is claimed for such places."""
    x = torch.tensor([[1.0, 1.001]], dtype=torch.bfloat16)  # both 1.0 in bfloat16

    class Net(nn.Module):
        def forward(self, x):
            return torch.where(x[:, 1] * 1.002 > x[:, 0] * 1.001, 1.0, -1.0)

    assert Net()(x).item() != reference(Net(), (x,)).item()
