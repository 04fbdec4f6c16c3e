"""Inputs, outputs and branches."""

from __future__ import annotations

from .case import FP32, Function, attention, qkv, value


@value()
def keywords_dicts_and_nothing_in_the_output():
    def forward(m, q, *, k, v, flag=True, extra=None):
        out = attention(q, k, v)
        return {"out": [out, None], "n": 3, "extra": extra, "kept": q if flag else None}

    q, k, v = qkv()
    return Function(forward), (q,), {"v": v, "k": k, "extra": "text"}


@value()
def branch_on_the_data():
    def forward(m, q, k, v):
        if q.sum() > k.sum():
            return attention(q, k, v)
        return attention(q, k, v) - 1.0

    return Function(forward), qkv(FP32), {}
