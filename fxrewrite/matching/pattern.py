"""The pattern language: patterns are written as the PyTorch code that they match.

A rule's ``pattern`` method gets the vocabulary ``op`` and one variable for each further parameter,
and returns the pattern of the value that the site computes::

    def pattern(self, op, q, k, v, scale):
        scores = q @ k.mT
        return op.softmax(op.any_of(scores * scale, scores), dim=-1) @ v

Casts between floating dtypes, rearrangements of dims and operators that change nothing need not be
written: the matcher looks through them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast


class Pattern:
    """A pattern of a tensor value. Combine patterns with operators as if they were tensors."""

    def __matmul__(self, other: Pattern) -> Pattern:
        return Call("matmul", (self, other))

    def __add__(self, other: Any) -> Pattern:
        return Call("add", (self, other), commutative=True)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Pattern:
        return Call("mul", (self, other), commutative=True)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Pattern:
        return Call("sub", (self, other))

    def __truediv__(self, other: Any) -> Pattern:
        return Call("div", (self, other))

    def transpose(self, a: int, b: int) -> Pattern:
        """Two dims swapped, both counted from the end (negative)."""
        if isinstance(self, AnyOf):
            return AnyOf(tuple(option.transpose(a, b) for option in self.options))
        undone = isinstance(self, Transposed) and {self.a, self.b} == {a, b}
        return cast(Transposed, self).inner if undone else Transposed(self, a, b)

    @property
    def mT(self) -> Pattern:
        """The last two dims swapped."""
        return self.transpose(-2, -1)


@dataclass(frozen=True, eq=False)
class Variable(Pattern):
    """Binds any value; a second occurrence must be the same value."""

    name: str
    number: bool = False


@dataclass(frozen=True, eq=False)
class Transposed(Pattern):
    """``inner`` with two dims swapped, counted from the end."""

    inner: Pattern
    a: int
    b: int


@dataclass(frozen=True, eq=False)
class Contracted(Pattern):
    """At the root: ``inner``, a product, as the einsum that arranges its dims in another order."""

    inner: Call


@dataclass(frozen=True, eq=False)
class Call(Pattern):
    """A canonical operator (see ``terms``) applied to patterns, numbers or None."""

    op: str
    args: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    commutative: bool = False


@dataclass(frozen=True, eq=False)
class AnyOf(Pattern):
    """Alternatives, in order of preference."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class Repeat(Pattern):
    """``base`` with any number of named steps applied to it, in any order."""

    base: Pattern
    steps: dict[str, tuple[Pattern, tuple[str, ...]]]


@dataclass(frozen=True, eq=False)
class Hole(Pattern):
    """Inside a step of a Repeat: the value that the step is applied to."""


class Vocabulary:
    """``op`` in a rule's ``pattern``: the canonical operators as functions."""

    def any_of(self, *options: Pattern) -> Pattern:
        """One of several forms, the preferred one first."""
        return AnyOf(options)

    def optional(self, base: Pattern, **steps: Callable[..., Pattern]) -> Pattern:
        """``base``, or ``base`` with one of the steps applied."""
        applied = [step(base, *(Variable(n) for n in _parameters(step))) for step in steps.values()]
        return AnyOf((*applied, base))

    def contracted(self, product: Pattern) -> Pattern:
        """``product``, a matrix product that ends the pattern, as an einsum with its dims in any order."""
        return Contracted(cast(Call, product))

    def repeat(self, base: Pattern, **steps: Callable[..., Pattern]) -> Pattern:
        """``base`` after any number of steps, in any order.

        Each step is a function of the value and of variables of its own:
        ``op.repeat(scores, bias=lambda s, mask: s + mask, scale=lambda s, by: s * by)``.
        ``match.steps`` lists what was applied, first step first, as (name, bindings).
        """
        patterns = {}
        for name, step in steps.items():
            own = _parameters(step)
            patterns[name] = (step(Hole(), *(Variable(n) for n in own)), own)
        return Repeat(base, patterns)

    def number(self, name: str) -> Pattern:
        """Binds a Python number, never a tensor."""
        return Variable(name, number=True)

    def linear(self, x: Pattern, weight: Pattern, bias: Pattern | None = None) -> Pattern:
        """x · weightᵀ (+ bias), weight [N, K]."""
        return Call("linear", (x, weight, bias))

    def projection(self, x: Pattern, weight: Pattern, bias: Pattern | None = None) -> Pattern:
        """Dims of x summed up with those of a weight, in any order: einsum, tensordot, 1x1 convolution.

        Which dims is in ``match.attrs`` (see ``contractions``); weight [N..., K...].
        """
        return Call("projection", (x, weight, bias))

    def sdpa(self, q: Pattern, k: Pattern, v: Pattern, mask: Pattern | None) -> Pattern:
        """The fused call; its flags are in ``match.attrs``."""
        return Call("sdpa", (q, k, v, mask))

    def softmax(self, x: Pattern, dim: int) -> Pattern:
        return Call("softmax", (x,), {"dim": dim})

    def weighted_mean(self, x: Pattern, v: Pattern) -> Pattern:
        """softmax(x) @ v, written with the division by the softmax's sum after the product."""
        return Call("weighted_mean", (x, v))

    def rescued(self, weights: Pattern) -> Pattern:
        """A softmax with zeros in the place of rows whose every score is -inf."""
        return Call("rescued", (weights,))

    def sum(self, x: Pattern, dim: int) -> Pattern:
        """Sum over ``dim``, which is kept with size 1."""
        return Call("sum", (x,), {"dim": dim})

    def logsumexp(self, x: Pattern, dim: int) -> Pattern:
        """Logarithm of the sum of exponentials over ``dim``, which is kept with size 1."""
        return Call("logsumexp", (x,), {"dim": dim})

    def sigmoid(self, x: Pattern) -> Pattern:
        return Call("sigmoid", (x,))

    def relu(self, x: Pattern) -> Pattern:
        return Call("relu", (x,))

    def at_least(self, x: Pattern, bound: Pattern) -> Pattern:
        """``x``, or the number ``bound`` where it is less."""
        return Call("at_least", (x, bound))

    def activation(self, x: Pattern) -> Pattern:
        """GELU, SiLU or ReLU; which one is ``match.attrs["activation"]``."""
        return Call("activation", (x,))

    def half(self, x: Pattern, which: Pattern) -> Pattern:
        """One half of ``x`` along the last dim; ``which`` binds 0 for the first, 1 for the second."""
        return Call("half", (x, which))

    def tanh(self, x: Pattern) -> Pattern:
        return Call("tanh", (x,))

    def cat(self, a: Pattern, b: Pattern, dim: int) -> Pattern:
        return Call("cat", (a, b), {"dim": dim})

    def cast(self, x: Pattern) -> Pattern:
        """A cast that must be there (from FP8, say); casts between floats are looked through anyway."""
        return Call("cast", (x,))

    def pad(self, x: Pattern, dim: int, before: int, after: int, value: float) -> Pattern:
        return Call("pad", (x,), {"pads": {dim: (before, after)}, "value": value})

    def slice(self, x: Pattern, dim: int, start: int, end: int | None) -> Pattern:
        """x[start:end] along ``dim``."""
        return Call("slice", (x,), {"dim": dim, "start": start, "end": end})

    def every_other(self, x: Pattern, start: int) -> Pattern:
        """x[..., start::2], ``start`` 0 or 1."""
        return Call("every_other", (x,), {"start": start})

    def interleave(self, a: Pattern, b: Pattern) -> Pattern:
        """The elements of ``a`` and ``b`` in turn along the last dim."""
        return Call("interleave", (a, b))

    def masked_fill(self, x: Pattern, mask: Pattern, value: Pattern) -> Pattern:
        return Call("masked_fill", (x, mask, value))

    def where(self, condition: Pattern, a: Pattern, b: Pattern) -> Pattern:
        return Call("where", (condition, a, b))

    def regroup(self, x: Pattern) -> Pattern:
        """A reshape that keeps the last two dims: leading dims split or merged."""
        return Call("regroup", (x,))

    def reshape(self, x: Pattern) -> Pattern:
        """Any other reshape."""
        return Call("reshape", (x,))

    def split(self, x: Pattern) -> Pattern:
        """A matrix seen as blocks: each of its dims as (count, size), or as it is."""
        return Call("split", (x,))

    def merge(self, x: Pattern) -> Pattern:
        """Blocks seen as the matrix again."""
        return Call("merge", (x,))


def _parameters(step: Callable[..., Pattern]) -> tuple[str, ...]:
    return tuple(inspect.signature(step).parameters)[1:]


def compile_pattern(method: Callable[..., Pattern]) -> Pattern:
    """The pattern that a rule's bound ``pattern`` method describes."""
    _op, *names = inspect.signature(method).parameters
    return method(Vocabulary(), *(Variable(n) for n in names))
