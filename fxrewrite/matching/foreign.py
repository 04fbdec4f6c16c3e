"""Readings of other libraries' operators, by name: the libraries need not be installed."""

from __future__ import annotations

from .terms import CallNode, Dims, Term, reads, shown_plainly
from .value import plain


@reads("linear", "quanto::qbytes_mm")
def _(node: CallNode, dims: Dims) -> list[Term]:
    """x · (scales · weights)ᵀ, the weights int8 or FP8."""
    if not shown_plainly(node, dims):
        return []
    x, weights, scales = node.args
    decoded = Term("mul", (Term("cast", (plain(weights),)), plain(scales)))
    return [Term("linear", (plain(x), decoded, None))]
