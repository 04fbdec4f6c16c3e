"""Linear layers written as contractions: einsum, tensordot, convolutions of kernel size 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from fxrewrite.guards import Guard, holds
from fxrewrite.guards.prover import prove_equal
from fxrewrite.guards.verdict import Verdict
from fxrewrite.matching import Match, Pattern, View, Vocabulary
from fxrewrite.matching.value import is_one

from .linear import Linear


class Projection(Linear):
    """Any dims of x summed up with those of a stored weight, which may have several rows' dims.

    The dims are merged to those of a matrix product, where that costs no copy of the weight.
    """

    def pattern(self, op: Vocabulary, x: Pattern, weight: Pattern, bias: Pattern) -> Pattern:
        return op.projection(x, weight, bias)

    def applies(self, m: Match) -> bool:
        return m["weight"].node.op in ("placeholder", "get_attr")

    def guards(self, m: Match) -> Iterator[Guard]:
        yield from super().guards(m)
        x, weight, own = m["x"], m["weight"], m.attrs["own"]
        dims = range(weight.rank)
        yield holds(
            _merges(weight, dims[:own]) and _merges(weight, dims[own:]),
            "the weight is a matrix in memory",
            f"weight of strides {weight.val.stride()}",
        )
        summed = m.attrs["summed"]
        last = x.val.stride(summed[-1])
        yield holds(
            _merges(x, summed) and prove_equal(last, 1, "").verdict is Verdict.PROVED,
            "what is summed over is innermost in memory",
            f"x{list(x.shape)} of strides {x.val.stride()}, summed over {summed}",
        )

    def replace(self, op: Any, m: Match) -> Any:
        x, weight, own = m["x"], m["weight"], m.attrs["own"]
        kept = m.attrs["kept"]
        rows = [x.shape[d] for d in kept]
        columns, depth = weight.shape[:own], math.prod(weight.shape[own:])
        a = op.reshaped(x.pick([*kept, *m.attrs["summed"]]), (*rows, depth))
        w = op.reshaped(weight, (math.prod(columns), depth))
        out = op.fxrewrite.linear(a, w, m["bias"] if m.has("bias") else None)
        out = op.reshaped(out, (*rows, *columns))
        order = m.attrs["order"]
        if order != sorted(order):
            out = op.aten.permute(out, order)
        return op.as_root(out, m.value)


def _merges(view: View, dims: Sequence[int]) -> bool:
    """Can these dims, in this order, be merged into one without a copy?"""
    value = view.val
    inner = [d for d in dims if not is_one(value.shape[d])]
    return all(
        prove_equal(value.stride(a), value.stride(b) * value.shape[b], "").verdict is Verdict.PROVED
        for a, b in itertools.pairwise(inner)
    )
