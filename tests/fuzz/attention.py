"""Random softmax attentions, fused and written out, and what only looks like one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .draw import BF16, F32, F64, INF, Choices, Growing, Inputs, Module, laid_out, sizes

Step = Callable[..., Tensor]


def _sizes(c: Choices) -> dict[str, Any]:
    groups = c.of("groups", [1, 2, 3])
    length = Growing(c.size("L"))
    return {
        "batch": Growing(c.of("B", [0, 1, 2, 3], [0.2, 3, 3, 1])),
        "groups": groups,
        "heads": groups * c.of("per group", [1, 2], [5, 1]),
        "length": length,
        "keys": length if c.chance("self", 0.5) else Growing(c.size("S")),
        "dim": c.of("D", [1, 4, 8, 17, 32, 40, 64, 72], [1, 1, 2, 1, 4, 1, 3, 1]),
    }


def _mask(c: Choices, inputs: Inputs, frame: list[Any], dtype: torch.dtype, boolean: bool) -> int:
    """A mask that broadcasts to ``frame``: any rank, any dims of one, rows without any key."""
    rank = c.of("mask rank", range(max(2, len(frame) - 2), len(frame) + 1))
    shape = [1 if c.chance("1", 0.25) else size for size in frame[len(frame) - rank :]]
    empty = c.chance("an empty row", 0.25)
    layout = c.of("mask is", ["plain", "transposed", "expanded"], [4, 1, 1])

    def make(generator: torch.Generator, grown: int) -> Tensor:
        keep = torch.rand(*sizes(shape, grown), generator=generator) > 0.3
        if empty and keep.numel():
            keep.view(-1, keep.shape[-1])[0] = False
        if not boolean:
            noise = torch.randn(keep.shape, generator=generator, dtype=F64)
            return laid_out(noise.masked_fill(~keep, -INF).to(dtype), layout, 0)
        return laid_out(keep, layout, 0)

    return inputs.add(shape, make)


def fused(c: Choices) -> Module:
    s, dtype, inputs = _sizes(c), c.dtype(), Inputs(c)
    flat = s["heads"] == s["groups"] and c.chance("rank 3", 0.1)
    lead = [s["batch"]] if flat else [s["batch"], s["heads"]]
    key_lead = [s["batch"]] if flat else [s["batch"], s["groups"]]
    dim_v = c.of("Dv", [s["dim"], 16], [6, 1])
    kind = c.of("mask", ["", "causal", "bool", "float"], [4, 2, 3, 2])
    # which of the keys that is_causal hides the framework reads all the same is an accident of its blocks
    hidden = kind == "causal"
    # with less than a vector of keys it gives zeros for scores that are all NaN
    few = s["keys"].size < 17
    q = inputs.normal("q", [*lead, s["length"], s["dim"]], dtype, finite=few)
    k = inputs.normal("k", [*key_lead, s["keys"], s["dim"]], dtype, finite=hidden or few)
    v = inputs.normal("v", [*key_lead, s["keys"], dim_v], dtype, finite=hidden)
    mask = None
    if kind in ("bool", "float"):
        of = c.of("mask dtype", [dtype, F32]) if dtype in (BF16, F32) else dtype
        mask = _mask(c, inputs, [*lead, s["length"], s["keys"]], of, kind == "bool")
    # where it masks by is_causal, the framework's own kernel makes NaN of a scale that is not positive
    scales = [None, 0.3, 2.0] + ([] if hidden else [0.0, -0.5])
    scale = c.of("scale", scales, [4, 2, 1, 0.5, 1][: len(scales)])
    gqa = s["heads"] != s["groups"]

    def function(*t: Tensor) -> Tensor:
        attn_mask = None if mask is None else t[mask]
        return F.scaled_dot_product_attention(
            t[q], t[k], t[v], attn_mask, is_causal=kind == "causal", scale=scale, enable_gqa=gqa
        )

    return Module(function, inputs)


def _causal(scores: Tensor, _: Any) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -INF)


PRODUCTS: dict[str, Step] = {
    "@": lambda q, k: q @ k.mT,
    "matmul": lambda q, k: torch.matmul(q, k.transpose(-1, -2)),
    "einsum": lambda q, k: torch.einsum("bhld,bhsd->bhls", q, k),
    "bmm": lambda q, k: torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, q.shape[:2]),
    "swapped": lambda q, k: (k @ q.mT).mT,
    "baddbmm": lambda q, k: torch.baddbmm(
        torch.zeros((), dtype=q.dtype), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0
    ).unflatten(0, q.shape[:2]),
    "in float": lambda q, k: q.float() @ k.float().mT if q.dtype != F64 else q @ k.mT,
}
SCALES: dict[str, Callable[[float], tuple[Step, Step, Step]]] = {
    # what is done to q, k and the scores
    "none": lambda s: (lambda q: q, lambda k: k, lambda x: x),
    "q": lambda s: (lambda q: q * s, lambda k: k, lambda x: x),
    "k": lambda s: (lambda q: q, lambda k: k / (1 / s), lambda x: x),
    "both": lambda s: (lambda q: q * abs(s) ** 0.5, lambda k: k * abs(s) ** 0.5, lambda x: x),
    "scores": lambda s: (lambda q: q, lambda k: k, lambda x: x * s),
    "scores, divided": lambda s: (lambda q: q, lambda k: k, lambda x: x / (1 / s)),
    "scores, in place": lambda s: (lambda q: q, lambda k: k, lambda x: x.mul_(s)),
    "twice": lambda s: (lambda q: q * 2, lambda k: k, lambda x: x * (s / 2)),
}
MASKS: dict[str, Step] = {
    "added": lambda x, m: x + m,
    "added first": lambda x, m: m + x,
    "filled": lambda x, m: x.masked_fill(~m, -INF),
    "filled, low": lambda x, m: x.masked_fill(~m, torch.finfo(x.dtype).min),
    "filled, number": lambda x, m: x.masked_fill(~m, -1e4),
    "where": lambda x, m: torch.where(m, x, -INF),
    "where, not": lambda x, m: torch.where(~m, torch.finfo(x.dtype).min, x),
    "filled, kept": lambda x, m: x.masked_fill(m, -INF),
    "multiplied": lambda x, m: x * m,  # no mask at all
}
SOFTMAXES: dict[str, Step] = {
    "method": lambda x: x.softmax(-1),
    "F": lambda x: F.softmax(x, dim=-1),
    "dim 3": lambda x: torch.softmax(x, 3),
    "float": lambda x: F.softmax(x, dim=-1, dtype=torch.float32) if x.dtype != F64 else x.softmax(-1),
    "cast": lambda x: x.float().softmax(-1).to(x.dtype) if x.dtype != F64 else x.softmax(-1),
    "written": lambda x: (e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True),
    "dropout off": lambda x: F.dropout(x.softmax(-1), 0.1, training=False),
    "dim -2": lambda x: x.softmax(-2),  # and those that are none
    "dim 1": lambda x: x.softmax(1),
    "sigmoid": lambda x: x.sigmoid(),
    "base 2": lambda x: torch.exp2(x) / torch.exp2(x).sum(-1, keepdim=True),
    "unnormalised": lambda x: (x - x.amax(-1, keepdim=True)).exp(),
}
BETWEEN: dict[str, Step] = {
    "": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "clamped": lambda x: x.clamp(max=2.0),
    "tanh": lambda x: 5 * torch.tanh(x / 5),
    "shifted": lambda x: x + 1.0,
    "lowest": lambda x: x - x.amax(-1, keepdim=True),
}
OUTPUTS: dict[str, Step] = {
    "@": lambda p, v: p.to(v.dtype) @ v,
    "einsum": lambda p, v: torch.einsum("bhls,bhsd->bhld", p.to(v.dtype), v),
    "bmm": lambda p, v: torch.bmm(p.to(v.dtype).flatten(0, 1), v.flatten(0, 1)).unflatten(0, v.shape[:2]),
    "token major": lambda p, v: (p.to(v.dtype) @ v).transpose(1, 2).reshape(p.shape[0], p.shape[2], -1),
    "transposed": lambda p, v: (v.mT @ p.to(v.dtype).mT).mT,
    "twice": lambda p, v: (p.to(v.dtype) @ v, p.mean(-1)),
    "returned": lambda p, v: (p.to(v.dtype) @ v, p),
    "values transposed": lambda p, v: p.to(v.dtype) @ v.mT.contiguous().mT,
}


def written(c: Choices) -> Module:
    s, dtype, inputs = _sizes(c), c.dtype(), Inputs(c)
    frame = [s["batch"], s["heads"], s["length"], s["keys"]]
    masked = c.of("mask", ["", "causal", "any"], [5, 2, 4])
    # keys that a causal mask hides are not read, whatever they hold: eager spreads their NaN
    hidden = masked == "causal"
    q = inputs.normal("q", [*frame[:3], s["dim"]], dtype)
    k = inputs.normal("k", [s["batch"], s["groups"], s["keys"], s["dim"]], dtype, finite=hidden)
    dim_v = c.of("Dv", [s["dim"], 16], [6, 1])
    v = inputs.normal("v", [s["batch"], s["groups"], s["keys"], dim_v], dtype, finite=hidden)
    repeats = s["heads"] // s["groups"]
    grouped = c.of("grouped by", ["repeat_interleave", "expand", "repeat"]) if repeats > 1 else ""
    product = c.named("product", PRODUCTS)
    number = c.of("scale", [1 / math.sqrt(max(1, s["dim"])), 0.3, -0.5, 2.0], [5, 2, 1, 1])
    on_q, on_k, on_scores = c.named("scaled", SCALES)(number)
    softmax = SOFTMAXES[c.of("softmax", list(SOFTMAXES), [4, 4, 2, 2, 3, 2, 2, 1, 1, 0.5, 0.5, 0.5])]
    between = BETWEEN[c.of("between", list(BETWEEN), [20, 2, 1, 1, 2, 1])]
    output = c.named("output", OUTPUTS)
    apply_mask, mask = None, None
    if hidden:
        apply_mask = _causal
    elif masked:
        name = c.of("masked by", list(MASKS))
        boolean = not name.startswith("added") and name != "multiplied"
        mask = _mask(c, inputs, frame, c.of("mask dtype", [dtype, F32], [3, 1]), boolean)
        apply_mask = MASKS[name]
    mask_first = c.chance("masked before scaled", 0.1)
    overwritten = c.chance("keys overwritten in between", 0.04)

    def wide(t: Tensor) -> Tensor:
        if grouped == "repeat_interleave":
            return t.repeat_interleave(repeats, 1)
        if grouped == "expand":
            return t[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2)
        return t.repeat(1, repeats, 1, 1) if grouped else t

    def function(*t: Tensor) -> Any:
        key, value = t[k], t[v]
        scores = product(on_q(t[q]), on_k(wide(key)))
        if mask_first and apply_mask:
            scores = apply_mask(scores, None if mask is None else t[mask])
        scores = on_scores(scores)
        if not mask_first and apply_mask:
            scores = apply_mask(scores, None if mask is None else t[mask])
        if overwritten:
            key = key.clone().mul_(0.5)
            value = value.clone().add_(1)
        return output(softmax(between(scores)), wide(value))

    return Module(function, inputs)
