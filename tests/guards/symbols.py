"""Symbolic sizes for tests: SymInts of one ShapeEnv, as tracing with dynamic shapes makes them."""

from __future__ import annotations

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


class Sizes:
    """Backed symbols with hints and ranges, without an upper bound where none is given."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.symbols: list[torch.SymInt] = []

    def symbol(self, hint: int, low: int = 2, high: int | None = None) -> torch.SymInt:
        source = ConstantSource(f"size_{len(self.symbols)}")
        expression = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True)
        bounds = {} if high is None else {"compiler_max": high}
        self.env.constrain_symbol_range(
            expression, **({"compiler_max": sympy.oo, "compiler_min": low} | bounds)
        )
        made = self.env.create_symintnode(expression, hint=hint, source=source)
        self.symbols.append(made)
        return made

    def facts(self) -> tuple:
        """All that a proof must leave as it is."""
        return (
            [str(g.expr) for g in self.env.guards],
            dict(self.env.replacements),
            {s: (r.lower, r.upper) for s, r in self.env.var_to_range.items()},
        )
