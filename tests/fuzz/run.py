"""One random module through the pass: rewritten against eager, with float64 as the oracle."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fxrewrite.patterns import DEFAULT
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fxrewrite.capture import canonical_graph
from fxrewrite.rewriting import Options, rewrite_graph
from tests.support import contract
from tests.support.contract import ContractError
from tests.support.float64 import Float64Mode, widen
from tests.support.soundness import same

from . import attention, linear, linear_attention
from .draw import Choices, Module

FAMILIES: dict[str, tuple[Callable[[Choices], Module], float]] = {
    "fused": (attention.fused, 2),
    "written": (attention.written, 4),
    "linear": (linear.layers, 2),
    "fp8": (linear.fp8, 2),
    "linear_attention": (linear_attention.attention, 2),
}
POOLED = 24  # draws whose errors decide where a single, small one is at the mercy of chance
CHANCE = 1.04  # what is left of it then: some 1 % of the ratio of two errors over 10,000 values
WRONG = 2.0  # no rounding in another order: beyond this the numbers are wrong, not coarse


class Wrong(AssertionError):
    """A rewritten module whose numbers are not eager's; the message has the module's choices."""


def module(seed: int) -> Module:
    """The random module of a seed."""
    choices = Choices(seed)
    weights = [weight for _, weight in FAMILIES.values()]
    return FAMILIES[choices.of("family", list(FAMILIES), weights)][0](choices)


def check(seed: int) -> Counter[str]:
    """Rewrite the module of ``seed`` and compare. Returns its sites as ``{"sdpa matched": 1, ...}``, and
    ``"coarse": 1`` where its error is beyond the contract's ratio, by more than chance.

    Raises Wrong for other numbers, and whatever the pass or the rewritten module raise. A module that
    eager itself refuses is no module: nothing is compared.
    """
    made = module(seed)
    inputs = made.inputs.draw(seed)
    try:
        _run(made.function, inputs)
    except (RuntimeError, IndexError):
        return Counter({"refused by eager": 1})
    try:
        return _check(made, seed, inputs)
    except Exception as error:
        raise Wrong(f"seed {seed}: {type(error).__name__}: {error}\n{made.told}") from error


def _check(made: Module, seed: int, inputs: list[Tensor]) -> Counter[str]:
    dynamic = made.inputs.choices.chance("dynamic", 0.1)
    gm = _trace(made, inputs, dynamic)
    original = _copy(gm)
    found = rewrite_graph(gm, DEFAULT, Options(), "g", grad_enabled=False)
    silent = [site for site in found.sites if not site.matched and not site.reason.strip()]
    if silent:
        raise ContractError(f"rejected without a reason: {silent}")
    counts = Counter(f"{site.kind} {site.status}" for site in found.sites)
    if any(site.matched for site in found.sites):
        ratio = _compare(made, gm, seed, grown=0)
        if dynamic and _serves(original, made, seed, grown=2):
            ratio = max(ratio, _compare(made, gm, seed, grown=2))
        counts["coarse"] = ratio > contract.RATIO * CHANCE
    return counts


def _trace(made: Module, inputs: list[Tensor], dynamic: bool) -> fx.GraphModule:
    """The graph of the module; sizes that grow are symbolic if ``dynamic``."""
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    fakes = []
    for x, growing in zip(inputs, made.inputs.growing, strict=True):
        dims = [DimDynamic.DUCK if grows else DimDynamic.STATIC for grows in growing]
        context = StatelessSymbolicContext(dynamic_sizes=dims) if dynamic else None
        fakes.append(mode.from_tensor(x, symbolic_context=context))
    with torch.no_grad(), mode:
        traced = make_fx(made.function, pre_dispatch=True, tracing_mode="real")(*fakes)
    return canonical_graph(traced)


def _compare(made: Module, gm: Callable[..., Any], seed: int, grown: int) -> float:
    """RMS error over eager's, 0 where it is within the contract at once."""
    try:
        contract.check(*next(_draws(made, gm, [seed], grown)))
    except ContractError as error:
        if _is_certain(error):
            raise
        draws = list(_draws(made, gm, range(seed, seed + POOLED), grown))
        contract.score(*(_stacked([draw[i] for draw in draws]) for i in range(3)))
        ratio = _typical_ratio(draws)
        if ratio > WRONG:
            raise ContractError(f"RMS error {ratio:.2f} times eager's, over {POOLED} draws") from error
        return ratio
    return 0.0


def _typical_ratio(draws: list[tuple[list[Tensor], list[Tensor], list[Tensor]]]) -> float:
    """RMS error over eager's, or over half an ulp: the geometric mean over the draws of the worst output.

    A sum of squares over all draws would be that of the one draw with the largest error.
    """
    worst = 0.0
    for index, eager in enumerate(draws[0][1]):
        if not eager.is_floating_point() or not eager.numel():
            continue
        logarithms = []
        for ours, theirs, exact in draws:
            o, e, x = (t[index].double() for t in (ours, theirs, exact))
            valid = e.isfinite() & x.isfinite()
            floor = contract.half_ulp(x, eager.dtype)[valid].square().mean().sqrt() / contract.RATIO
            rms = [(t - x)[valid].square().mean().sqrt() for t in (o, e)]
            logarithms.append((rms[0].clamp(min=1e-300) / torch.maximum(rms[1], floor)).log().item())
        worst = max(worst, math.exp(statistics.fmean(x for x in logarithms if math.isfinite(x))))
    return worst


def _is_certain(error: ContractError) -> bool:
    """Is it about shapes, types, or places of NaN and infinity, and not about the size of errors?"""
    return not any(words in str(error) for words in ("RMS error", "drift in the mean"))


def _draws(
    made: Module, gm: Callable[..., Any], seeds: Any, grown: int
) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """(ours, eager's, exact) outputs for each seed of values."""
    for seed in seeds:
        inputs = made.inputs.draw(seed, grown)
        ours, eager = _run(gm, inputs), _run(made.function, inputs)
        again = made.inputs.draw(seed, grown)
        if not all(map(same, again, inputs)):
            raise ContractError("an input was changed")
        wide = [widen(x) for x in again]
        with torch.no_grad(), Float64Mode():
            exact = _tensors(made.function(*wide))
        yield _settled(ours, eager, exact)


def _settled(
    ours: list[Tensor], eager: list[Tensor], exact: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The outputs without the places where eager is wrong itself: NaN or an infinity where float64 has
    none, or the other way round, and ours is what float64 is. (The framework's attention, for one, gives
    zeros for a query that holds NaN, if the keys are few.)
    """
    settled = []
    for o, e, x in zip(ours, eager, exact, strict=True):
        if o.shape == e.shape == x.shape and e.is_floating_point():
            wrong = (_kind(e) != _kind(x)) & (_kind(o) == _kind(x))
            o, e, x = (t.masked_fill(wrong, 0.0) for t in (o, e, x))
        settled.append((o, e, x))
    return tuple(list(column) for column in zip(*settled, strict=True))  # type: ignore[return-value]


def _kind(x: Tensor) -> Tensor:
    """0 for a number, 1 for NaN, 2 and 3 for the infinities."""
    return x.isnan() + 2 * x.isposinf() + 3 * x.isneginf()


def _serves(original: Callable[..., Any], made: Module, seed: int, grown: int) -> bool:
    """Is the traced graph, as it was, right for these other sizes? Its guards are not checked here."""
    inputs = made.inputs.draw(seed, grown)
    try:
        eager, traced = _run(made.function, inputs), _run(original, inputs)
    except (RuntimeError, IndexError):
        return False
    return all(a.shape == b.shape and same(a, b) for a, b in zip(eager, traced, strict=True))


def _run(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return _tensors(function(*inputs))


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _stacked(draws: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(outputs) for outputs in zip(*draws, strict=True)]


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)
