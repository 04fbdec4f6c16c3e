"""The requirements of ``fxrewrite::sdpa``: the implementation that is chosen is the one that runs."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.guards import Verdict
from fxrewrite.ops import implementations
from fxrewrite.ops.counters import CallsSince
from fxrewrite.ops.implementations import BF16_LEVELS
from fxrewrite.ops.isa import active_isa
from fxrewrite.ops.library import load_native
from fxrewrite.rewriting.choice import arguments_of, choose

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
native = pytest.mark.skipif(load_native() is not None, reason="the native library is not at hand")


def call(dtype, length, dim, heads=2, groups=2, keys=20):
    """The arguments of a call by name."""
    q = torch.randn(1, heads, length, dim).to(dtype)
    k, v = torch.randn(2, 1, groups, keys, dim).to(dtype)
    options = {"query": q, "key": k, "value": v, "enable_gqa": groups != heads}
    return arguments_of(torch.ops.fxrewrite.sdpa.default._schema, (), options)


@native
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("dim", [16, 17, 32, 33, 64])
def test_what_is_chosen_runs(dtype, dim):
    ran = 0
    for length in (1, 3, 4, 5, 6, 8, 9):
        for heads, groups in ((2, 2), (6, 2)):
            arguments = call(dtype, length, dim, heads, groups)
            chosen = choose("sdpa", arguments).implementation
            if chosen is None:  # left to the framework at this level
                continue
            calls = CallsSince()
            torch.ops.fxrewrite.sdpa(**arguments)
            assert calls() == {"sdpa": {chosen: 1}}
            ran += 1
    assert ran or active_isa() not in BF16_LEVELS  # where some are left to the framework


@native
@pytest.mark.skipif(active_isa() not in BF16_LEVELS, reason="measured where products of bfloat16 are")
@pytest.mark.parametrize(
    ("dtype", "dim", "length", "algorithm"),
    [
        (BF16, 32, 3, "stream"),
        (BF16, 32, 4, "blocks"),
        (BF16, 33, 8, "stream"),
        (F32, 16, 5, "stream"),
        (F32, 16, 6, "blocks"),
        (F32, 17, 8, "stream"),
        (BF16, 64, 9, "blocks"),
    ],
)
def test_few_rows_over_short_keys_are_packed(dtype, dim, length, algorithm):
    assert choose("sdpa", call(dtype, length, dim)).implementation.endswith(f":{algorithm}")


@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize(
    ("dtype", "length", "taken"),
    [(BF16, 2, True), (BF16, 3, False), (F32, 4, True), (F32, 5, False), (F16, 4, True), (F16, 5, False)],
)
def test_without_bf16_instructions_only_few_rows_pay(level, dtype, length, taken):
    judged = [guard.judge() for guard in implementations._sdpa_stream(call(dtype, length, 64), level)]
    refused = [j.detail for j in judged if j.verdict is not Verdict.PROVED]
    reason = f"query length = {length} > {length - 1}: the framework is faster at level {level}"
    assert refused == ([] if taken else [reason])


@pytest.mark.parametrize(
    ("level", "dim", "taken"),
    [("avx2", 72, True), ("avx2", 68, False), ("avx512", 64, True), ("avx512", 72, False)],
)
def test_without_bf16_instructions_heads_are_whole_vectors(level, dim, taken):
    judged = [guard.judge() for guard in implementations._sdpa_stream(call(F32, 1, dim), level)]
    refused = [j.guard for j in judged if j.verdict is not Verdict.PROVED]
    assert len(refused) == (0 if taken else 2), refused


@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize(("dtype", "keys", "taken"), [(F32, 16, True), (F32, 15, False), (BF16, 15, True)])
def test_without_bf16_instructions_few_keys_do_not_pay(level, dtype, keys, taken):
    judged = [g.judge() for g in implementations._sdpa_stream(call(dtype, 1, 64, keys=keys), level)]
    refused = [j.detail for j in judged if j.verdict is not Verdict.PROVED]
    reason = f"key length = {keys} < 16: the framework is faster at level {level}"
    assert refused == ([] if taken else [reason])


@pytest.mark.parametrize(("dtype", "dim", "taken"), [(F32, 32, True), (F32, 16, False), (BF16, 16, True)])
def test_without_bf16_instructions_short_heads_of_float32_do_not_pay(dtype, dim, taken):
    judged = [g.judge() for g in implementations._sdpa_stream(call(dtype, 1, dim), "avx512")]
    refused = [j.detail for j in judged if j.verdict is not Verdict.PROVED]
    assert refused == ([] if taken else ["head size = 16 < 32: the framework is faster at level avx512"])


@pytest.mark.parametrize(("length", "taken"), [(8, False), (9, True)])
def test_without_bf16_instructions_few_rows_are_no_blocks(length, taken):
    judged = [g.judge() for g in implementations._sdpa_blocks(call(F16, length, 64), "avx2")]
    refused = [j.detail for j in judged if j.verdict is not Verdict.PROVED]
    assert refused == ([] if taken else ["query rows of a key head = 8 < 9: fewer run as a stream"])
