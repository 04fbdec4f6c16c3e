"""Random facts and guards for the prover, and what is true of them by brute force.

    python -m tests.guards.worlds [GUARDS] [SEED]      how much is decided, beside torch, and in what time

A world is a ShapeEnv with three sizes, some facts that its guards record, and all points (of a grid that
reaches far where a size has no bound) at which those facts hold. A guard is decidable where it holds at all
of them, or at none.
"""

from __future__ import annotations

import operator
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fxrewrite.guards import Verdict, prover
from tests.guards.symbols import Sizes

FAR = (31, 32, 33, 64, 95, 96, 128, 480, 1001, 1024)
SIGNS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "<=": operator.le, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
ASK = {
    "divisible": (prover.prove_divisible, lambda a, b: a % b == 0),
    "equal": (prover.prove_equal, operator.eq),
    "at_most": (prover.prove_at_most, operator.le),
    "at_least": (prover.prove_at_least, operator.ge),
}


def value_of(expression: Any, sizes: Any) -> Any:
    """An expression (a nested tuple) of ints, SymInts or tensors of ints."""
    if isinstance(expression, str):
        return sizes[int(expression)]
    if not isinstance(expression, tuple):
        return expression
    sign, left, right = expression
    return SIGNS[sign](value_of(left, sizes), value_of(right, sizes))


def largest(expression: Any, world: World) -> int:
    """A bound of the absolute values that an expression goes through."""
    if isinstance(expression, str):
        return int(world.points[int(expression)].max())
    if not isinstance(expression, tuple):
        return abs(expression)
    left, right = (largest(part, world) for part in expression[1:])
    return max(left * right if expression[0] == "*" else left + right, left, right)


@dataclass
class World:
    sizes: Sizes
    symbols: list[torch.SymInt]
    points: list[torch.Tensor]
    facts: list[Any] = field(default_factory=list)


@dataclass
class Guard:
    kind: str
    left: Any
    right: Any

    def truth(self, world: World) -> bool | None:
        """What brute force says: always, never, or now one now the other."""
        values = [value_of(side, world.points) for side in (self.left, self.right)]
        holds = torch.as_tensor(ASK[self.kind][1](*values))
        return None if bool(holds.any()) != bool(holds.all()) else bool(holds.all())

    def verdict(self, world: World) -> Verdict:
        return ASK[self.kind][0](*(value_of(e, world.symbols) for e in (self.left, self.right)), "n").verdict

    def torch_decides(self, world: World) -> bool:
        question = ASK[self.kind][1](*(value_of(e, world.symbols) for e in (self.left, self.right)))
        return statically_known_true(question) or statically_known_true(torch.sym_not(question))


def random_world(rng: random.Random) -> World:
    """Three sizes and up to four facts about them."""
    hints, ranges = [], []
    for _ in range(3):
        low = rng.choice([0, 1, 2, 2, 2, 5])
        high = low + rng.randint(1, 24) if rng.random() < 0.4 else None
        ranges.append((low, high))
        hints.append(rng.randint(low, high) if high is not None else rng.choice([low, *range(low, 30), *FAR]))
    sizes = Sizes()
    symbols = [sizes.symbol(max(h, low), low, high) for h, (low, high) in zip(hints, ranges, strict=True)]
    grid = [
        [
            *range(low, low + 14),
            *FAR,
            *(hint + 96 * rng.randint(1, 9) for _ in range(4)),
            *rng.choices(range(low, 2000), k=8),
        ]
        if high is None
        else range(low, high + 1)
        for hint, (low, high) in zip(hints, ranges, strict=True)
    ]
    points = list(torch.cartesian_prod(*(torch.tensor(sorted(set(g))) for g in grid)).unbind(1))
    world = World(sizes, symbols, points)
    for _ in range(rng.randint(0, 4)):
        fact = random_fact(rng, hints)
        truth = bool(value_of(fact, symbols))  # recorded as a guard, at the hints
        keep = value_of(fact, world.points) == truth
        world.points = [p[keep] for p in world.points]
        world.facts.append((fact, truth))
    for symbol in symbols:
        symbol.node.expr  # noqa: B018  # torch shortens its chains of replacements when it is first asked
    return world


def random_fact(rng: random.Random, hints: list[int]) -> Any:
    a, b, c = rng.sample(["0", "1", "2"], 3)
    divisor = rng.choice([2, 3, 4, 8, 16, 32])
    kind = rng.randrange(6)
    if kind <= 1:
        return ("==", ("%", a, divisor), hints[int(a)] % divisor)
    if kind == 2:
        product = ("*", a, b)
        return ("==", ("%", product, divisor), value_of(product, hints) % divisor)
    if kind == 3:
        return (rng.choice(["<=", "<"]), a, b)
    if kind == 4:
        gap = hints[int(a)] - hints[int(b)]
        return ("==", a, ("+", b, gap))
    return ("<=", ("+", a, b), ("+", c, rng.randint(0, 40)))


def random_expression(rng: random.Random, depth: int = 2) -> Any:
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(["0", "1", "2", "0", "1", "2", rng.choice([1, 2, 3, 4, 8, 16, 31, 32, 33])])
    sign = rng.choice(["+", "-", "*", "*", "*", "//", "%"])
    left = random_expression(rng, depth - 1)
    if sign in ("//", "%"):
        return (sign, left, rng.choice([2, 3, 4, 8, 16, 32]))
    return (sign, left, random_expression(rng, depth - 1))


def random_guard(rng: random.Random) -> Guard:
    kind = rng.choice(["divisible", "divisible", "equal", "at_most", "at_least"])
    left = random_expression(rng, rng.choice([1, 2, 2, 3]))
    if kind == "divisible":
        return Guard(kind, left, rng.choice([2, 3, 4, 8, 16, 32]))
    if rng.random() < 0.5:
        return Guard(kind, left, rng.choice([0, 1, 2, 8, 32, 64, 512]))
    return Guard(kind, left, random_expression(rng, 2))


def survey(guards: int, seed: int, *, beside_torch: bool = True) -> dict[str, Any]:
    """Judge random guards, 50 a world: what was decided of what is decidable, and what was wrong."""
    rng = random.Random(seed)
    count: Counter[str] = Counter()
    wrong, missed, seconds = [], [], []
    while count["guards"] < guards:
        world = random_world(rng)
        if len(world.points[0]) < 4:
            continue
        before = world.sizes.facts()
        for _ in range(50):
            guard = random_guard(rng)
            while max(largest(guard.left, world), largest(guard.right, world)) >= 1 << 62:
                guard = random_guard(rng)  # brute force computes in int64
            truth = guard.truth(world)
            values = [value_of(side, world.symbols) for side in (guard.left, guard.right)]
            for value in values:  # sympy's part, done once where a graph is traced
                value.node.expr if isinstance(value, torch.SymInt) else value
            began = time.thread_time()
            verdict = ASK[guard.kind][0](*values, "n").verdict
            seconds.append(time.thread_time() - began)
            count["guards"] += 1
            count["decidable"] += truth is not None
            if verdict is not Verdict.UNKNOWN:
                count["decided"] += truth is not None
                if truth is not (verdict is Verdict.PROVED):
                    wrong.append((world.facts, world.sizes.facts(), guard, verdict, truth))
            if beside_torch:
                count["torch"] += truth is not None and guard.torch_decides(world)
            elif truth is not None:
                missed.append((world.facts, world.sizes.facts(), guard, truth))
        assert world.sizes.facts() == before
    return {**count, "wrong": wrong, "missed": missed, "median": statistics.median(seconds), "worst": max(seconds),
            "p99": statistics.quantiles(seconds, n=100)[98]}  # fmt: skip


def summary(found: dict[str, Any]) -> str:
    share = 100 / found["decidable"]
    return (
        f"{found['guards']} guards, {found['decidable']} decidable: {found['decided'] * share:.1f} % decided "
        f"(torch's statically_known_true: {found['torch'] * share:.1f} %), {len(found['wrong'])} wrong; "
        f"a verdict takes {1e6 * found['median']:.0f} µs in the median, {1e6 * found['p99']:.0f} µs at the "
        f"99th percentile"
    )


def main() -> None:
    given = [int(argument) for argument in sys.argv[1:]]
    guards, seed = [*given, 20_000, 0][:2] if len(given) != 1 else (given[0], 0)
    found = survey(guards, seed)
    print(summary(found))
    for case in found["wrong"][:5]:
        print(*case, sep="\n    ")


if __name__ == "__main__":
    main()
