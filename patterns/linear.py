"""Linear layers: ``linear``, ``addmm``, ``matmul`` with a stored weight, and a bias added after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fxrewrite.guards import Guard, holds, same_dtype
from fxrewrite.guards.prover import prove_equal
from fxrewrite.guards.verdict import Verdict
from fxrewrite.matching import Match, Pattern, Rule, View, Vocabulary
from fxrewrite.matching.terms import OPERATORS

aten = torch.ops.aten


class LinearRule(Rule):
    """What all rules of linear layers need of ``x``, ``weight`` and ``bias``."""

    kind = "linear"

    def place(self, m: Match) -> Any:
        """The layer itself, not what follows it."""
        products = {"linear", "matmul", "projection"}
        return next((n for n in m.computed if not products.isdisjoint(OPERATORS.get(n.target, ()))), m.root)

    def guards(self, m: Match) -> Iterator[Guard]:
        x, weight = m["x"], m["weight"]
        yield same_dtype({name: m[name] for name in ("x", "weight", "bias") if m.has(name)})
        yield holds(x.dtype.is_floating_point, "x is floating point", f"x is {x.dtype}")
        yield holds(
            x.layout == weight.layout == torch.strided, "x and weight are strided", f"{weight.layout} weight"
        )


class Linear(LinearRule):
    """x · Wᵀ + b, as one call or as a matmul with a stored weight."""

    def pattern(self, op: Vocabulary, x: Pattern, weight: Pattern, bias: Pattern) -> Pattern:
        return op.linear(x, weight, bias)

    def applies(self, m: Match) -> bool:
        # a matmul of two computed matrices is no layer
        return m.root.target is aten.linear.default or m["weight"].node.op in ("placeholder", "get_attr")

    def replace(self, op: Any, m: Match) -> Any:
        return op.fxrewrite.linear(m["x"], m["weight"], m["bias"] if m.has("bias") else None)


class BiasedLinear(Linear):
    """A linear without bias, and a vector of its output's width added to it."""

    def pattern(self, op: Vocabulary, x: Pattern, weight: Pattern, bias: Pattern) -> Pattern:
        return op.linear(x, weight, None) + bias

    def applies(self, m: Match) -> bool:
        bias = m.bindings["bias"]
        if isinstance(bias, (int, float)) or m.root.meta["val"].dtype != m["x"].dtype:
            return False
        # a bias is a stored vector; what else may be added is a residual
        stored = all(m[n].node.op in ("placeholder", "get_attr") for n in ("bias", "weight"))
        return stored and m["bias"].node.meta["val"].dim() == 1 and is_bias(m["bias"], m["weight"])

    def replace(self, op: Any, m: Match) -> Any:
        bias = m["bias"].pick([m["bias"].rank - 1])
        return op.fxrewrite.linear(m["x"], m["weight"], bias)


def is_bias(bias: View, weight: View) -> bool:
    """Is ``bias``, as added to the output, a vector with an element for each of the weight's rows?"""
    vector = all(isinstance(size, int) and size == 1 for size in bias.shape[:-1])
    return vector and prove_equal(bias.shape[-1], weight.shape[0], "").verdict is Verdict.PROVED
