"""The lists of CUDA implementations, judged on fake tensors, and the framework's calls that they write."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from fxrewrite.ops import cuda
from fxrewrite.report import Reason
from fxrewrite.rewriting.choice import arguments_of, choose
from tests.support.graphs import rewritten

BF16, F32 = torch.bfloat16, torch.float32


def chosen(op: str, *values, **named):
    """The choice for a call with fake CUDA tensors; tensors are given as (dtype, sizes) or a function."""
    with FakeTensorMode():

        def tensor(given):
            if callable(given):
                return given()
            return torch.empty(given[1], dtype=given[0], device="cuda") if isinstance(given, tuple) else given

        arguments = [tensor(v) for v in values]
        keywords = {name: tensor(v) for name, v in named.items()}
    return choose(
        op, arguments_of(getattr(torch.ops.fxrewrite, op).default._schema, tuple(arguments), keywords)
    )


def cuda_empty(*sizes, dtype=BF16):
    return torch.empty(sizes, dtype=dtype, device="cuda")


FP8 = torch.float8_e4m3fn
WEIGHT = (FP8, (96, 64))


@pytest.mark.parametrize(
    ("x", "weight", "scale", "implementation"),
    [
        ((BF16, (1, 64)), WEIGHT, None, "cuda:stream"),
        ((BF16, (2, 64, 64)), WEIGHT, (F32, (96, 1)), "cuda:stream"),
        ((BF16, (129, 64)), WEIGHT, (F32, ()), "cuda:decode"),
        ((BF16, (129, 64)), WEIGHT, None, None),  # a cast and the framework's GEMM are as fast
        ((F32, (1, 64)), WEIGHT, None, None),
        ((BF16, (1, 72)), (FP8, (96, 72)), None, None),
        ((BF16, (1, 64)), (torch.float8_e4m3fnuz, (96, 64)), None, None),
        ((BF16, (1, 64)), lambda: cuda_empty(64, 96, dtype=FP8).t(), None, None),
        ((BF16, (1, 64)), lambda: cuda_empty(96, 72, dtype=FP8)[:, :64], None, None),
        ((BF16, (1, 64)), WEIGHT, (F32, (1, 64)), None),
        ((BF16, (1, 64)), WEIGHT, (torch.int32, ()), None),
    ],
)
def test_fp8_linear(fake_cuda, x, weight, scale, implementation):
    assert chosen("fp8_linear", x, weight, scale).implementation == implementation


@pytest.mark.parametrize(("grid", "block"), [((6, 4), [16, 16]), ((96, 1), [1, 64]), ((1, 1), [96, 64])])
def test_scales_of_blocks_are_the_frameworks(fake_cuda, grid, block):
    assert chosen("fp8_linear", (BF16, (1, 64)), WEIGHT, (F32, grid), None, block).implementation is None


QKV = [(BF16, (2, 3, 300, 32))] * 3


@pytest.mark.parametrize(
    ("tensors", "options", "implementation"),
    [
        (QKV, {}, "cuda:tokens"),
        (QKV, {"channel_major": True, "out_dtype": F32}, "cuda:channels"),
        ([(F32, (2, 3, 300, 32))] * 5, {}, "cuda:tokens"),
        ([lambda: cuda_empty(2, 3, 32, 304).mT] * 3, {}, "cuda:tokens"),
        (QKV, {"out_dtype": torch.float16}, None),
        ([(torch.float16, (2, 3, 300, 32))] * 3, {}, None),
        ([(BF16, (2, 3, 300, 128))] * 3, {}, None),
        ([(BF16, (2, 3, 300, 33))] * 3, {}, None),
        ([lambda: cuda_empty(2, 3, 32, 301).mT] * 3, {}, None),
        ([lambda: cuda_empty(2, 3, 300, 64)[..., ::2]] * 3, {}, None),
        ([*QKV, None, None, *[(F32, (300, 16))] * 2], {}, "cuda:tokens"),
        ([*QKV, None, None, *[(torch.float64, (300, 16))] * 2], {}, None),
        ([*QKV, *QKV[:2], *[(F32, (300, 16))] * 2], {}, None),
        ([*[lambda: cuda_empty(2, 3, 32, 304).mT] * 3, None, None, *[(F32, (304, 16))] * 2], {}, None),
        ([(BF16, (70000, 1, 8, 32))] * 3, {}, None),
        ([(BF16, (2, 3, 0, 32))] * 3, {}, None),
    ],
)
def test_relu_linear_attention(fake_cuda, tensors, options, implementation):
    options = {"eps": 1e-6, **options}
    assert chosen("relu_linear_attention", *tensors, **options).implementation == implementation


@pytest.mark.parametrize(
    ("dtypes", "lowers"), [((F32, F32), True), ((BF16, F32), True), ((BF16, BF16), False)]
)
def test_what_the_level_high_lowers_is_said(fake_cuda, dtypes, lowers):
    tensors = [(F32, (2, 3, 300, 32)), *((dtype, (2, 3, 300, 32)) for dtype in dtypes)]
    said = chosen("relu_linear_attention", *tensors, eps=1e-6).lowered
    assert said == ("keys and values are rounded to bfloat16 for their product" if lowers else "")


def test_linear_is_the_frameworks(fake_cuda):
    choice = chosen("linear", (BF16, (1, 64)), (BF16, (96, 64)))
    assert choice.implementation is None
    assert choice.code is Reason.NO_KERNEL
    assert "cuBLASLt" in choice.refusals[0].requirement


WRITTEN = {"safe_softmax": False}
HEADS = [(BF16, (1, 2, 40, 64))] * 3


@pytest.mark.parametrize(
    ("tensors", "options", "implementation"),
    [
        (HEADS, WRITTEN, "cuda:framework"),
        (HEADS, {**WRITTEN, "is_causal": True}, "cuda:framework"),
        (HEADS, {**WRITTEN, "attn_mask": (torch.bool, (40, 40))}, "cuda:framework"),
        (HEADS, {**WRITTEN, "attn_mask": (BF16, (1, 1, 1, 40))}, "cuda:framework"),
        (HEADS, {}, None),  # already one call
        (HEADS, {**WRITTEN, "mask_fill": -1e9, "attn_mask": (torch.bool, (40, 40))}, None),
        (HEADS, {**WRITTEN, "attn_mask": (F32, (40, 40))}, None),
        (HEADS, {**WRITTEN, "attn_mask": (torch.bool, (40, 40)), "is_causal": True}, None),
        (HEADS, {**WRITTEN, "softcap": 30.0}, None),
        ([(torch.float64, (1, 2, 40, 64))] * 3, WRITTEN, None),
        ([(BF16, (1, 2, 40, 320))] * 3, WRITTEN, None),
        ([*HEADS[:2], (BF16, (1, 2, 40, 32))], WRITTEN, None),
        ([(BF16, (1, 2, 40, 64)), *[(BF16, (1, 2, 0, 64))] * 2], WRITTEN, None),
    ],
)
def test_sdpa(fake_cuda, tensors, options, implementation):
    assert chosen("sdpa", *tensors, **options).implementation == implementation


def test_doctor_lists_what_would_run_and_why_not_the_better_one(fake_cuda):
    from fxrewrite.cli.doctor import _choices_on

    with FakeTensorMode():
        listed = {call.partition(" (cuda, ")[::2]: rows for call, rows in _choices_on("cuda")}
    assert {op for op, _ in listed} == set(cuda.CUDA_IMPLEMENTATIONS)
    (many,) = (rows for (op, text), rows in listed.items() if op == "fp8_linear" and text.startswith("1024"))
    assert [row[:2] for row in many] == [("refused", "cuda:stream"), ("chosen", "cuda:decode")]
    assert "rows = 1024" in many[0][2]
    assert "(modelled)" in many[0][2]
    (few,) = (rows for (op, text), rows in listed.items() if op == "fp8_linear" and text.startswith("1 "))
    assert [row[:2] for row in few] == [("chosen", "cuda:stream")]
    for rows in (rows for (op, _), rows in listed.items() if op == "linear"):
        assert rows[-1][0] == "none"
        assert "cuBLASLt is near the limit" in rows[0][2]


@pytest.mark.parametrize("op", cuda.CUDA_IMPLEMENTATIONS)
def test_old_devices_and_missing_libraries_are_refused(fake_cuda, monkeypatch, op):
    calls = {"fp8_linear": [(BF16, (1, 64)), WEIGHT], "relu_linear_attention": QKV}
    if op not in calls:
        pytest.skip("the framework's")
    options = {"eps": 1e-6} if op == "relu_linear_attention" else {}
    monkeypatch.setattr(cuda, "capability", lambda device: 75)
    choice = chosen(op, *calls[op], **options)
    assert choice.implementation is None
    assert "capability = 75" in choice.refusals[0].requirement
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "load_cuda", lambda: "it is not built")
    monkeypatch.setattr(cuda, "capability", lambda device: 90)
    assert chosen(op, *calls[op], **options).refusals[0].requirement == "it is not built"


# ------------------------------------------------------------------- attention as the framework's call


@pytest.fixture
def as_on_cuda(monkeypatch):
    """The CUDA lists for CPU tensors: what the framework computes is then compared."""
    from fxrewrite.rewriting import choice

    monkeypatch.setattr(choice, "on_cuda", lambda arguments: True)


def attention(q, k, v, mask=None):
    scores = q @ k.mT * 0.125
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def heads(dtype=F32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, 40, 64, generator=g).to(dtype) for _ in range(3)]


def test_attention_becomes_one_call(as_on_cuda):
    found = rewritten(lambda q, k, v: attention(q, k, v), *heads())
    assert found.of("sdpa").implementation == "cuda:framework"
    targets = [n.target for n in found.gm.graph.nodes if n.op == "call_function"]
    assert targets.count(torch.ops.aten.scaled_dot_product_attention.default) == 1
    assert not any("fxrewrite" in str(target) or "softmax" in str(target) for target in targets)
    out = found.gm(*heads())
    torch.testing.assert_close(out, attention(*heads()))
    assert out.is_contiguous()


@pytest.mark.parametrize("shape", [(40, 40), (1, 1, 40), (2, 1, 1, 40), (2, 3, 40, 40)])
def test_rows_without_keys_stay_nan(as_on_cuda, shape):
    mask = torch.zeros(shape)
    mask[..., 5:9] = float("-inf")
    mask[(0,) * (len(shape) - 1)] = float("-inf")
    found = rewritten(attention, *heads(), mask)
    assert found.of("sdpa").implementation == "cuda:framework"
    out, want = found.gm(*heads(), mask), attention(*heads(), mask)
    assert want.isnan().any()
    torch.testing.assert_close(out, want, equal_nan=True)


def test_result_in_the_order_of_tokens(as_on_cuda):
    def by_tokens(q, k, v):
        return attention(q, k, v).transpose(1, 2).contiguous()

    found = rewritten(by_tokens, *heads())
    assert found.of("sdpa").implementation == "cuda:framework"
    torch.testing.assert_close(found.gm(*heads()), by_tokens(*heads()))


def test_a_fused_call_is_left_alone(as_on_cuda):
    found = rewritten(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *heads())
    assert found.of("sdpa").code is Reason.NO_KERNEL
    assert found.after == found.before
