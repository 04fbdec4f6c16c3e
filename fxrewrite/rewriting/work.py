"""The work of operators, in floating point operations: what share of a model its sites are.

Products, convolutions and fused attention are counted, 2 for a multiplication and an addition, as
``torch.utils.flop_counter`` does; element-wise operators are not.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import conv_flop_count

from ..capture import example_size, expression_text, symbolic_expression

aten = torch.ops.aten
ShapeOf = Callable[[Any], list[Any]]
Formula = Callable[[Any, ShapeOf], Any]


def work_of(graph: fx.Graph, size: Callable[[Any], Any]) -> dict[fx.Node, Any]:
    """The operations of each node of ``graph`` that is counted; ``size`` says what a size is as a number."""
    found = {}
    for node in graph.nodes:
        formula = _FORMULAS.get(node.target)
        if formula is not None and isinstance(node.meta.get("val"), torch.Tensor):
            # the count is for the report alone: a call in a form that a formula does not know is left out
            with contextlib.suppress(IndexError, TypeError, ValueError):
                found[node] = formula(node, lambda value: [size(s) for s in value.meta["val"].shape])
    return found


class Work:
    """The work of a graph and of parts of it, as it was when this was made."""

    def __init__(self, graph: fx.Graph) -> None:
        self._counts = work_of(graph, example_size)
        self._terms = work_of(graph, symbolic_expression)

    @property
    def total(self) -> int:
        """Operations of one call, at the sizes of the example inputs."""
        return sum(self._counts.values())

    def count(self, nodes: frozenset[fx.Node]) -> int:
        """Operations of these nodes, at the sizes of the example inputs."""
        return sum(self._counts.get(node, 0) for node in nodes)

    def expression(self, nodes: frozenset[fx.Node]) -> str:
        """Operations of these nodes as text, an expression where sizes are symbolic; "" where not counted."""
        total = sum(self._terms.get(node, 0) for node in nodes)
        return expression_text(total) if total != 0 else ""


def _product(left: int) -> Formula:
    """Of a matrix product whose left operand is argument ``left``."""
    return lambda node, shape: 2 * math.prod(shape(node)) * shape(node.args[left])[-1]


def _convolution(transposed: bool) -> Formula:
    return lambda node, shape: conv_flop_count(
        shape(node.args[0]), shape(node.args[1]), shape(node), transposed=transposed
    )


def _sdpa(node: Any, shape: ShapeOf) -> Any:
    query, key, value = (shape(node.args[i]) for i in range(3))
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _einsum(node: Any, shape: ShapeOf) -> Any:
    equation, operands = re.sub(r"\s", "", node.args[0]), node.args[1]
    if "..." in equation or len(operands) != 2:
        return 0
    sizes: dict[str, Any] = {}
    for letters, operand in zip(equation.split("->")[0].split(","), operands, strict=True):
        for letter, size in zip(letters, shape(operand), strict=True):
            if sizes.get(letter, 1) == 1:  # a dim of size 1 is repeated
                sizes[letter] = size
    return 2 * math.prod(sizes.values())


_FORMULAS: dict[Any, Formula] = {
    aten.scaled_dot_product_attention.default: _sdpa,
    aten.einsum.default: _einsum,
    **dict.fromkeys(
        (aten.linear.default, aten.mm.default, aten.bmm.default, aten.matmul.default), _product(0)
    ),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), _product(1)),
    **dict.fromkeys(
        (
            *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
            *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
        ),
        _convolution(transposed=False),
    ),
    **dict.fromkeys(
        (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input),
        _convolution(transposed=True),
    ),
}
