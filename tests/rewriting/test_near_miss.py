"""Near misses: softmax between two products that no rule takes is reported, with the place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxrewrite
from fxrewrite.report import Reason
from fxrewrite.report.words import short_location
from tests.support.graphs import rewritten, trace

pytestmark = pytest.mark.usefixtures("any_kernel")
Q, K, V = (torch.randn(2, 3, 6, 8) for _ in range(3))

MISSES = {
    "softmax over queries": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, "softmax"),
    "an unknown step on the scores": (lambda q, k, v: (q @ k.mT).sinh().softmax(-1) @ v, "sinh"),
    "an unknown step on the weights": (lambda q, k, v: ((q @ k.mT).softmax(-1) ** 2) @ v, "pow_1"),
    "active dropout": (lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5, True) @ v, "dropout"),
}


@pytest.mark.parametrize(("function", "named"), MISSES.values(), ids=list(MISSES))
def test_reported(function, named):
    found = rewritten(function, Q, K, V)
    site = found.of("sdpa")
    assert (site.status, site.code) == ("rejected", Reason.STRUCTURE)
    assert site.node == "softmax"
    assert f"found {named} " in site.detail
    assert found.after == found.before


NONE = {
    "router": lambda q, k, v: q.softmax(-1),
    "weights returned": lambda q, k, v: (q @ k.mT).softmax(-1),
    "classifier": lambda q, k, v: F.linear(q, k[0, 0]).softmax(-1),
    "mixture": lambda q, k, v: (q.softmax(-1) * v).sum(-1),
    "softmax of an input, then a product": lambda q, k, v: q.mT.softmax(-1) @ v,
}


@pytest.mark.parametrize("function", NONE.values(), ids=list(NONE))
def test_not_reported(function):
    assert not [s for s in rewritten(function, Q, K, V).sites if s.kind == "sdpa"]


def normalised(q, k, v, most):
    q, k = q.relu(), k.relu()
    return (q @ (k.mT @ v)) / most(q @ k.sum(-2, keepdim=True).mT)


FEATURES = {
    "a normaliser between bounds": (lambda q, k, v: normalised(q, k, v, lambda z: z.clamp(1e-6, 9)), "clamp"),
    "no normaliser": (lambda q, k, v: q.relu() @ (k.relu().mT @ v), ""),
    "weights first, not normalised": (lambda q, k, v: (q.relu() @ k.relu().mT) @ v, ""),
}


@pytest.mark.parametrize(("function", "named"), FEATURES.values(), ids=list(FEATURES))
def test_linear_attention_is_reported(function, named):
    found = rewritten(function, Q, K, V)
    (site,) = [s for s in found.sites if s.kind == "linear_attention"]
    assert (site.status, site.code) == ("rejected", Reason.STRUCTURE)
    assert named in site.detail
    assert found.after == found.before


LAYERS = {
    "a layer after relu": lambda q, k, v: q.relu() @ k[0, 0, :8],
    "two layers": lambda q, k, v: (q @ k[0, 0, :8]).relu() @ v[0, 0, :8],
    "attention of what relu gave": lambda q, k, v: (q.relu() @ k.mT).softmax(-1) @ v,
}


@pytest.mark.parametrize("function", LAYERS.values(), ids=list(LAYERS))
def test_layers_after_relu_are_not(function):
    inputs = (torch.randn(2, 4, 8, 8) for _ in range(3))
    assert not [s for s in rewritten(function, *inputs).sites if s.kind == "linear_attention"]


def test_a_match_is_no_miss():
    found = rewritten(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, Q, K, V)
    assert found.of("sdpa").matched


def test_the_line_of_the_code_is_said():
    gm = trace(MISSES["an unknown step on the scores"][0], Q, K, V)
    for item in gm.graph.nodes:
        item.meta["stack_trace"] = f'  File "/home/me/net.py", line 7, in forward\n    # makes {item.name}\n'
    site = rewritten(gm).of("sdpa")
    assert site.detail.endswith(" at /home/me/net.py:7: # makes sinh")


def test_features_that_a_match_takes_as_operands_are_no_miss():
    def rotated(q, k, v, r):
        q, k = q.relu(), k.relu()
        return ((q @ r) @ ((k @ r).mT @ v)) / (q @ k.sum(-2, keepdim=True).mT + 1e-6)

    found = rewritten(rotated, Q, K, V, torch.randn(8, 8))
    assert [s.status for s in found.sites if s.kind == "linear_attention"] == ["matched"]


def test_rules_without_an_anchor_miss_nothing():
    from fxrewrite.patterns import Linear

    assert rewritten(MISSES["active dropout"][0], Q, K, V, rules=[Linear()]).sites == []


def test_what_was_found_is_told_as_it_was_called():
    site = rewritten(lambda q, k, v: (q @ k.mT).softmax(-2) @ v, Q, K, V).of("sdpa")
    said = "expected softmax with {'dim': -1}, found softmax = aten.softmax.int(..., -2)"
    assert site.detail.startswith(said)


def test_places_are_told_as_in_the_table():
    class Net(torch.nn.Module):
        def forward(self, q):
            return (q @ q.mT).softmax(-2) @ q

    torch.compiler.reset()
    with torch.no_grad():
        (site,) = fxrewrite.analyze(Net(), (Q,)).rejected
    assert site.detail.endswith(f" at {short_location(site.location)}: return (q @ q.mT).softmax(-2) @ q")
