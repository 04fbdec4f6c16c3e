"""Linear layers on fp8 weights, as checkpoints with fp8 weights are run."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.modules import noise

from . import MODELS


class Fp8Linear(nn.Module):
    """An fp8 weight with a scale; subclasses say how the weight is decoded."""

    def __init__(
        self, inner, outer, fp8=torch.float8_e4m3fn, scale_shape=(), bias=True, dtype=torch.bfloat16
    ):
        super().__init__()
        weight = noise(outer, inner, seed=inner) * inner**-0.5
        amax = weight.abs().amax(1, keepdim=True) if scale_shape == "row" else weight.abs().amax()
        scale = torch.ones(()) if scale_shape is None else amax / torch.finfo(fp8).max
        self.weight = nn.Parameter((weight / scale).to(fp8), requires_grad=False)
        self.register_buffer("scale", scale.reshape(scale_shape) if isinstance(scale_shape, tuple) else scale)
        self.bias = nn.Parameter(noise(outer, seed=outer, dtype=dtype) * 0.1) if bias else None


class WeightScaled(Fp8Linear):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


class OutputScaled(Fp8Linear):
    def forward(self, x):
        out = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return out if self.bias is None else out + self.bias


class FloatDecoded(Fp8Linear):
    def forward(self, x):
        return F.linear(x, (self.weight.float() * self.scale).to(x.dtype), self.bias)


class CastOnly(Fp8Linear):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias)


class TwoLayers(nn.Module):
    def __init__(self, layer, **settings):
        super().__init__()
        self.up, self.down = layer(48, 80, **settings), layer(80, 48, **settings)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


def add(name, layer, quick=False, **settings):
    dtype = settings.get("dtype", torch.bfloat16)

    @MODELS.add(f"fp8-{name}", quick=quick, fill=False, fp8=2, linear=2)
    def _():
        return TwoLayers(layer, **settings), (noise(2, 6, 48, seed=1, dtype=dtype),), {}


add("weight-scaled", WeightScaled, quick=True)
add("weight-scaled-one-element", WeightScaled, scale_shape=(1,), bias=False)
add("weight-scaled-e5m2", WeightScaled, fp8=torch.float8_e5m2)
add("output-scaled", OutputScaled)
add("rows-scaled-float-decoded", FloatDecoded, scale_shape="row")
add("cast-only", CastOnly, scale_shape=None, bias=False)
add("fp32-activations", WeightScaled, dtype=torch.float32)


class SharedDecode(nn.Module):
    """The decoded weight has two users, one of which is no matrix product."""

    def __init__(self):
        super().__init__()
        self.layer = Fp8Linear(48, 48)

    def forward(self, x):
        weight = self.layer.weight.to(x.dtype) * self.layer.scale.to(x.dtype)
        return F.linear(x, weight, self.layer.bias) * weight.norm()


@MODELS.add("fp8-shared-decode", fill=False, fp8=1, linear=1)
def _():
    return SharedDecode(), (noise(2, 6, 48, seed=1, dtype=torch.bfloat16),), {}
