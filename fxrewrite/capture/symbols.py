"""Symbolic sizes: their expressions, and what a ShapeEnv knows of them. Asking adds no guard."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch._dynamo
import torch._guards
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._sympy import functions as sizes
from torch.utils._sympy.printers import PythonPrinter

ShapeEnv = torch.fx.experimental.symbolic_shapes.ShapeEnv


def symbolic_expression(value: Any) -> Any:
    """The sympy expression of a SymInt, or the int itself; None for a size that is no number (ragged)."""
    return getattr(value.node, "expr", None) if isinstance(value, torch.SymInt) else value


def example_size(value: Any) -> int:
    """The size that a SymInt had when it was captured (1 where it has none), or the int itself."""
    if isinstance(value, torch.SymInt):
        return int(value.node.hint) if value.node.has_hint() else 1
    return int(value)


@functools.lru_cache(maxsize=4096)
def expression_text(expression: Any) -> str:
    """A sympy expression, or an int, as Python has it: "s0 // 2"."""
    symbolic = isinstance(expression, sympy.Basic)
    return str(PythonPrinter().doprint(expression) if symbolic else expression)


def shape_env_of(*values: Any) -> ShapeEnv | None:
    """The ShapeEnv that the SymInts among ``values`` belong to, or None."""
    symbolic = (value.node for value in values if isinstance(value, torch.SymInt))
    return next((node.shape_env for node in symbolic if hasattr(node, "shape_env")), None)


@contextlib.contextmanager
def adding_guards() -> Iterator[None]:
    """A context in which conditions that are evaluated become guards, within one that suppresses that."""
    before = getattr(symbolic_shapes.TLS, "suppress_guards", False)
    symbolic_shapes.TLS.suppress_guards = False
    try:
        yield
    finally:
        symbolic_shapes.TLS.suppress_guards = before


def evaluated(question: Callable[[], bool]) -> bool | None:
    """The answer with the sizes at hand; None where only the run knows it.

    As everywhere, the ShapeEnv records the answer as a guard, unless guards are suppressed.
    """
    try:
        return question()
    except GuardOnDataDependentSymNode:
        return None


@dataclass(frozen=True)
class ShapeFacts:
    """What a ShapeEnv knows: conditions on its symbols (sympy), and inclusive ranges by their names."""

    conditions: tuple[Any, ...]
    ranges: Mapping[str, tuple[float, float]]


def shape_facts(environment: ShapeEnv) -> ShapeFacts:
    """Guards, runtime asserts, replacements and ranges. Nothing is added to the environment."""
    asserts = (a.expr for found in environment.deferred_runtime_asserts.values() for a in found)
    equal = (sympy.Eq(*pair, evaluate=False) for pair in environment.replacements.items())
    return ShapeFacts(
        (*(guard.expr for guard in environment.guards), *asserts, *equal),
        {s.name: integer_bounds(found) for s, found in environment.var_to_range.items() if found.is_int},
    )


def facts_version(environment: ShapeEnv) -> object:
    """Equal for equal facts."""
    return (
        len(environment.guards),
        environment.num_deferred_runtime_asserts,
        len(environment.replacements),
        tuple(environment.var_to_range.values()),
    )


def integer_bounds(found: Any) -> tuple[float, float]:
    low, high = (int(end) if end.is_Integer else None for end in (found.lower, found.upper))
    return (-math.inf if low is None else low, math.inf if high is None else high)


def integer_function(expression: Any) -> str | None:
    """Where a sympy expression is a call of a function of integers, which: "quotient", "remainder" ..."""
    return _INTEGER_FUNCTIONS.get(type(expression))


_INTEGER_FUNCTIONS: dict[type, str] = {
    sizes.FloorDiv: "quotient",
    sizes.CleanDiv: "quotient",
    sizes.Mod: "remainder",
    sizes.PythonMod: "remainder",
    sizes.Max: "largest",
    sizes.Min: "smallest",
    sizes.PowByNatural: "power",
}
