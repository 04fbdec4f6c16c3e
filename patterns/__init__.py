"""The rules that fxrewrite uses by default, one file a family."""

from fxrewrite.matching import Rule

from .fp8_linear import Fp8Linear
from .linear import BiasedLinear, Linear
from .linear_attention import (
    PaddedReluAttention,
    QuadraticReluAttention,
    ReluAttention,
    RotaryReluAttention,
)
from .linear_epilogue import GatedLinear, LinearEpilogue
from .projection import Projection
from .sdpa import FusedAttention, SunkAttention, WrittenAttention

DEFAULT: tuple[Rule, ...] = (
    FusedAttention(),
    SunkAttention(),
    WrittenAttention(),
    PaddedReluAttention(),
    ReluAttention(),
    RotaryReluAttention(),
    QuadraticReluAttention(),
    Fp8Linear(),
    GatedLinear(),
    LinearEpilogue(),
    BiasedLinear(),
    Linear(),
    Projection(),
)

__all__ = [
    "DEFAULT",
    "BiasedLinear",
    "Fp8Linear",
    "FusedAttention",
    "GatedLinear",
    "Linear",
    "LinearEpilogue",
    "PaddedReluAttention",
    "Projection",
    "QuadraticReluAttention",
    "ReluAttention",
    "RotaryReluAttention",
    "SunkAttention",
    "WrittenAttention",
]
