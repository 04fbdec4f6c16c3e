"""Linear layers and what follows them: an activation, a factor, a residual. Each is one site.

What does not qualify as an epilogue (another dtype, a value that is used elsewhere) leaves the linear
a site of its own: see ``linear``.
"""

from __future__ import annotations

from typing import Any

import torch

from fxrewrite.guards.prover import prove_equal
from fxrewrite.guards.verdict import Verdict
from fxrewrite.matching import Match, Pattern, View, Vocabulary

from .linear import LinearRule, is_bias

# In these the model may compute between the steps, where they are wider than the layer's dtype.
WIDER = (torch.float32, torch.float64)


def any_linear(op: Vocabulary, x: Pattern, weight: Pattern, bias: Pattern) -> Pattern:
    """A linear with the bias in it, or with one added after it."""
    return op.any_of(op.linear(x, weight, None) + bias, op.linear(x, weight, bias))


class LinearEpilogue(LinearRule):
    """activation(x·Wᵀ + b) · multiply + residual, with one of the three at least."""

    def pattern(
        self,
        op: Vocabulary,
        x: Pattern,
        weight: Pattern,
        bias: Pattern,
        multiply: Pattern,
        residual: Pattern,
    ) -> Pattern:
        y = any_linear(op, x, weight, bias)
        activated = op.any_of(op.activation(y), y)
        scaled = op.any_of(activated * multiply, activated)
        return op.any_of(scaled + residual, activated * multiply, op.activation(y))

    def applies(self, m: Match) -> bool:
        shape = (*m["x"].shape[:-1], m["weight"].shape[0])
        return (
            is_one_layer(m)
            and same(m.value.shape, shape)
            and _is_operand(m, "multiply", shape, broadcast=True)
            and _is_operand(m, "residual", shape, broadcast=False)
        )

    def replace(self, op: Any, m: Match) -> Any:
        epilogue: dict[str, Any] = dict(m.attrs)
        if m.has("multiply"):
            epilogue["multiply"] = _without_leading_ones(m["multiply"])
        if m.has("residual"):
            epilogue["residual"] = m["residual"]
        return op.fxrewrite.linear(m["x"], m["weight"], vector(m, "bias"), **epilogue)


class GatedLinear(LinearRule):
    """One linear whose result is value and gate: value · activation(gate), in either order.

    The two halves are computed one after the other, each with its rows of the weight.
    """

    def pattern(
        self,
        op: Vocabulary,
        x: Pattern,
        weight: Pattern,
        bias: Pattern,
        value_half: Pattern,
        gate_half: Pattern,
    ) -> Pattern:
        y = any_linear(op, x, weight, bias)
        return op.half(y, value_half) * op.activation(op.half(y, gate_half))

    def applies(self, m: Match) -> bool:
        return is_one_layer(m) and m.bindings["value_half"] != m.bindings["gate_half"]

    def replace(self, op: Any, m: Match) -> Any:
        value, gate = int(m.number("value_half", 0)), int(m.number("gate_half", 1))
        width = m.value.shape[-1]

        def half(tensor: View | None, which: int) -> Any:
            if tensor is None:
                return None
            return op.aten.slice.Tensor(tensor, 0, which * width, (which + 1) * width)

        weight, bias = m["weight"], vector(m, "bias")
        gates = op.fxrewrite.linear(
            m["x"], half(weight, gate), half(bias, gate), activation=m.attrs["activation"]
        )
        return op.fxrewrite.linear(m["x"], half(weight, value), half(bias, value), multiply=gates)


def is_one_layer(m: Match) -> bool:
    """Is it a stored layer whose inner values nobody else sees, in a dtype that the kernels keep?"""
    dtype = m["x"].dtype
    if m["weight"].node.op not in ("placeholder", "get_attr") or m.root.meta["val"].dtype != dtype:
        return False
    if m.has("bias") and not (isinstance(m.bindings["bias"], View) and _is_vector(m["bias"], m["weight"])):
        return False
    inside = m.seen | {m.root}
    if any(node is not m.root and not inside.issuperset(node.users) for node in m.computed):
        return False
    kept = (dtype, *(wider for wider in WIDER if torch.promote_types(wider, dtype) == wider))
    return all(getattr(node.meta["val"], "dtype", dtype) in kept for node in m.computed)


def _is_vector(bias: View, weight: View) -> bool:
    stored = bias.node.op in ("placeholder", "get_attr")
    return stored and bias.node.meta["val"].dim() == 1 and is_bias(bias, weight)


def vector(m: Match, name: str) -> View | None:
    """The operand ``name`` [1, .., N] as [N], or None where the match has none."""
    return m[name].pick([m[name].rank - 1]) if m.has(name) else None


def _is_operand(m: Match, name: str, shape: tuple[Any, ...], *, broadcast: bool) -> bool:
    """Is ``name`` absent, or a tensor of the layer's dtype that has (or broadcasts to) this shape?"""
    operand = m.bindings.get(name)
    if operand is None:
        return True
    if not isinstance(operand, View) or operand.dtype != m["x"].dtype:
        return False
    *rows, columns = zip(operand.shape, shape, strict=True)
    if broadcast:
        rows = [(own, size) for own, size in rows if not isinstance(own, int) or own != 1]
    return all(prove_equal(own, size, "").verdict is Verdict.PROVED for own, size in (*rows, columns))


def same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Are two shapes provably equal?"""
    return len(left) == len(right) and all(
        prove_equal(a, b, "").verdict is Verdict.PROVED for a, b in zip(left, right, strict=True)
    )


def _without_leading_ones(view: View) -> View:
    """``view`` without the dims that only broadcasting gave it."""
    lead = 0
    while lead < view.rank - 1 and view.dims[lead] is None:
        lead += 1
    return view.pick(range(lead, view.rank))
