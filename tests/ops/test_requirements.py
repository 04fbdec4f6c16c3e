"""The requirements of ``fxrewrite::linear``: which layers its kernels are known to be faster on."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.guards import Verdict
from fxrewrite.ops import implementations
from fxrewrite.ops.isa import multiplies_float16

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def verdict(rows: int, n: int, k: int, dtype=BF16, level="avx512_bf16", **epilogue) -> Verdict:
    """Of the panel form, for a layer of these sizes: the worst of its requirements."""
    with torch.device("meta"):
        x, weight = torch.empty(rows, k, dtype=dtype), torch.empty(n, k, dtype=dtype)
    arguments = {"x": x, "weight": weight, "bias": None, "activation": "", "multiply": None, "residual": None}
    judged = [g.judge() for g in implementations._linear({**arguments, **epilogue}, level)]
    by_size = [j for j in judged if not j.guard.startswith("x on")]
    return next((j.verdict for j in by_size if j.verdict is not Verdict.PROVED), Verdict.PROVED)


@pytest.fixture(autouse=True)
def no_instructions_for_float16(monkeypatch):
    monkeypatch.setattr(implementations, "multiplies_float16", lambda: False)


def test_float16_where_the_framework_multiplies_it(monkeypatch):
    monkeypatch.setattr(implementations, "multiplies_float16", lambda: True)
    assert verdict(128, 64, 64, FP16) is not Verdict.PROVED
    assert verdict(128, 64, 64, BF16) is Verdict.PROVED


@pytest.mark.parametrize(
    ("sizes", "epilogue", "taken"),
    [
        ((128, 3072, 2560), {}, True),
        ((128, 3072, 3072), {}, True),
        ((128, 8192, 2048), {}, True),
        ((32, 4096, 4096), {}, True),
        ((33, 4096, 4096), {}, True),
        ((65, 4096, 4096), {}, True),
        ((384, 11008, 4096), {}, True),
        ((256, 4096, 12288), {}, True),
        ((385, 4096, 4096), {}, False),
        ((1023, 4096, 4096), {}, False),
        ((1024, 4096, 4096), {}, True),
        ((128, 4096, 4096), {"activation": "gelu"}, True),
        ((385, 4096, 4096), {"activation": "gelu"}, False),
        ((128, 4096, 2560), {"activation": "gelu"}, True),
        ((2048, 3072, 12288), {}, False),
        ((128, 15, 64), {"dtype": FP32}, False),
        ((128, 16, 64), {"dtype": FP32}, True),
        ((128, 16, 64), {"dtype": torch.float64}, False),
        ((1024, 4096, 4096), {"dtype": FP16}, True),
        ((128, 64, 64), {"dtype": FP16, "activation": "gelu"}, False),
        ((128, 64, 64), {"dtype": FP16, "multiply": torch.empty(64)}, False),
        ((128, 64, 64), {"dtype": FP16, "residual": torch.empty(64)}, False),
    ],
)
def test_sizes_that_pay(sizes, epilogue, taken):
    assert (verdict(*sizes, **epilogue) is Verdict.PROVED) == taken


@pytest.mark.parametrize(
    ("level", "rows", "taken"),
    [
        ("avx512", 16, True),
        ("avx512", 15, False),
        ("avx2", 16, True),
        ("avx2", 15, False),
        ("portable", 64, False),
    ],
)
def test_float16_at_lower_levels(level, rows, taken, monkeypatch):
    monkeypatch.setattr(implementations, "detected_isa", lambda: level)
    assert (verdict(rows, 64, 64, FP16, level) is Verdict.PROVED) == taken


def test_float16_where_the_framework_does_not_tell(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert multiplies_float16.__wrapped__()
