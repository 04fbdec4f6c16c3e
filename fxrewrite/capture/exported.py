"""Exported programs: their functional graph, and what they check when they run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sympy
import torch
import torch._dynamo
import torch._guards

from .symbols import integer_bounds, symbolic_expression


def from_exported(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program with a functional graph in which composites are still whole."""
    decomposed: torch.export.ExportedProgram = program.run_decompositions({})
    return decomposed


def enforced_sizes(
    program: torch.export.ExportedProgram,
) -> tuple[dict[str, tuple[float, float]], frozenset[str]]:
    """What a program checks of its inputs when it runs: the ranges of its symbols by name; and the names of
    those of which it checks nothing.

    A lower bound of 2 is not checked: sizes 0 and 1 run. Nor is anything of a derived size (``4 * k``), so
    that k need not even be an integer.
    """
    ranges = {}
    for symbol, found in program.range_constraints.items():
        if symbol.is_Symbol:
            low, high = integer_bounds(found)
            ranges[symbol.name] = (low if low > 2 else 0, high)
    derived: set[str] = set()
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            expression = symbolic_expression(size)
            if isinstance(expression, sympy.Basic) and not expression.is_Symbol:
                derived.update(symbol.name for symbol in expression.free_symbols)
    return ranges, frozenset(derived)


@contextlib.contextmanager
def renaming_outputs(program: torch.export.ExportedProgram) -> Iterator[None]:
    """While active, a node that is replaced in the program's graph is replaced in its signature too."""
    hook = program.graph_signature.get_replace_hook()
    with program.graph_module._set_replace_hook(hook):
        yield
