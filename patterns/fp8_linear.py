"""Linear layers whose weight is stored in FP8 and decoded at every call (W8A16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from fxrewrite.guards import Guard, holds
from fxrewrite.matching import Match, Pattern, Rule, View, Vocabulary

from .fp8_scales import Scheme, scheme_of
from .linear import is_bias

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
SCALES = ("scale", "divisor", "out_scale")


class Fp8Linear(Rule):
    """x · (s ∘ W)ᵀ + b: the scale on the weight or on the output, multiplied or divided, or none.

    A scale of the weight is one number, one for each row, each column or each block.
    """

    kind = "fp8_matmul"
    anchor = "cast"
    fed_by = frozenset()
    feeds = frozenset({"linear", "matmul"})

    def is_anchor(self, node: Any) -> bool:
        stored = node.args[0].meta["val"]
        return stored.dtype in FP8 and stored.dim() >= 2  # a bias may be stored in FP8 too

    def pattern(
        self,
        op: Vocabulary,
        x: Pattern,
        weight: Pattern,
        scale: Pattern,
        divisor: Pattern,
        bias: Pattern,
        out_scale: Pattern,
        out_bias: Pattern,
    ) -> Pattern:
        stored = op.cast(weight)
        blocks = op.any_of(op.split(stored), op.cast(op.split(weight)))
        decoded = op.any_of(
            stored * scale,
            stored / divisor,
            stored,
            op.merge(blocks * scale),
            op.merge(blocks / divisor),
        )
        y = op.linear(x, decoded, bias)
        plain = op.linear(x, decoded, None)
        return op.any_of(plain * out_scale + out_bias, plain + out_bias, y * out_scale, y)

    def refine(self, m: Match) -> Match:
        """The scale bound to the grid of blocks that the graph expands.

        The decoded weight may have other users: it is cheaper to decode it again than to read it.
        """
        m = replace(m, remade=m.independent_of("x"))
        scheme = _scheme(m)
        if scheme is None or any(map(m.aliasing.is_mutated, scheme.passed)):
            return m
        name = "scale" if m.has("scale") else "divisor"
        bindings = {**m.bindings, name: scheme.grid}
        return replace(m, bindings=bindings, attrs={**m.attrs, "scheme": scheme}, seen=m.seen | scheme.passed)

    def applies(self, m: Match) -> bool:
        if m["weight"].dtype not in FP8:
            return False
        # what is added after the product is a bias only if it is a vector along the output
        bias = m.bindings.get("out_bias")
        return bias is None or (isinstance(bias, View) and is_bias(bias, m["weight"]))

    def guards(self, m: Match) -> Iterator[Guard]:
        x, root = m["x"], m.value
        yield holds(
            x.dtype == root.dtype, "x has the output's dtype", f"x is {x.dtype}, the output {root.dtype}"
        )
        scaled_bias = m.has("out_scale") and m.has("bias")
        yield holds(not scaled_bias, "the bias is not scaled", "the output scale also multiplies the bias")
        sizes = m.attrs.get("split_sizes"), m.attrs.get("merge_sizes")
        yield holds(sizes[0] == sizes[1], "blocks merge as they were split", f"{sizes[0]}, then {sizes[1]}")
        scales = [n for n in SCALES if m.has(n)]
        yield holds(len(scales) <= 1, "one scale", f"more than one scale: {', '.join(scales)}")
        for name in scales:
            if not isinstance(m.bindings[name], View):
                continue
            if name == "out_scale":
                yield holds(
                    _is_vector(m[name]), "the output scale is a number or a vector", f"scale {m[name].shape}"
                )
            else:
                yield holds(
                    "scheme" in m.attrs,
                    "the scale is of the tensor, or of rows, columns or blocks of the weight",
                    f"scale of shape {_sizes(m[name])} for a weight of shape {_sizes(m['weight'])}"
                    + (f", seen as {sizes[0]}" if sizes[0] else ""),
                )

    def replace(self, op: Any, m: Match) -> Any:
        bias = m["bias"] if m.has("bias") else None
        if m.has("out_bias"):
            bias = m["out_bias"].pick([m["out_bias"].rank - 1])
            if bias.dtype != m["x"].dtype:  # narrower, or the sum would not have the dtype of x
                bias = op.aten.to.dtype(bias, m["x"].dtype)
        scheme: Scheme | None = m.attrs.get("scheme")
        block = None if scheme is None or scheme.block is None else list(scheme.block)
        return op.fxrewrite.fp8_linear(m["x"], m["weight"], self._scale(op, m), bias, block)

    def _scale(self, op: Any, m: Match) -> Any:
        name = next((n for n in SCALES if m.has(n)), None)
        if name is None:
            return None
        scale: Any = m.bindings[name]
        if not isinstance(scale, View):
            scale = op.aten.full([], float(scale), dtype=torch.float32, device=m["x"].device)
        elif name == "out_scale":
            last = scale.rank - 1
            scale = scale.pick([last, None])  # [N] along the output: [N, 1] along the weight's rows
        if name == "divisor":
            scale = op.aten.reciprocal(op.aten.to.dtype(scale, torch.float32))
        return scale


def _scheme(m: Match) -> Scheme | None:
    scale = m.bindings.get("scale") or m.bindings.get("divisor")
    if not isinstance(scale, View):
        return None
    return scheme_of(scale, m["weight"].shape, m.attrs.get("split_sizes"))


def _is_vector(view: View) -> bool:
    """Is it of size 1 in all but the last dim?"""
    return all(isinstance(s, int) and s == 1 for s in view.shape[:-1])


def _sizes(view: View) -> list[Any]:
    return list(view.shape)
