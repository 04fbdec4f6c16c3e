"""Hazards: gradients, autocast, inner values that are used elsewhere, writes in between."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite import capture
from fxrewrite.report import Reason
from tests.support.graphs import rewritten, trace

pytestmark = pytest.mark.usefixtures("any_kernel")

X, W = torch.randn(3, 8), torch.randn(8, 8)
Q, K, V = (torch.randn(2, 3, 6, 8) for _ in range(3))


def attention(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


# ------------------------------------------------------------------------------------------ gradients


def tracked(function, *inputs, needing):
    gm = trace(function, *inputs)
    for placeholder in gm.graph.find_nodes(op="placeholder"):
        placeholder.meta["requires_grad"] = placeholder.name in needing
    return gm


def test_a_needed_gradient():
    gm = tracked(lambda x, w: F.linear(x, w), X, W, needing={"w_1"})
    site = rewritten(gm, grad=True).of("linear")
    assert site.code is Reason.REQUIRES_GRAD
    assert "torch.no_grad()" in site.reason


def test_a_gradient_through_other_operators():
    gm = tracked(lambda x, w: F.linear((x + 1).relu(), w), X, W, needing={"x_1"})
    assert rewritten(gm, grad=True).of("linear").code is Reason.REQUIRES_GRAD


def test_no_gradient_where_none_is_recorded():
    gm = tracked(lambda x, w: F.linear(x, w), X, W, needing={"w_1"})
    assert rewritten(gm, grad=False).matched == ["linear"]


def test_no_gradient_where_no_input_needs_one():
    gm = tracked(lambda x, w: F.linear(x, w), X, W, needing=set())
    assert rewritten(gm, grad=True).matched == ["linear"]


def test_a_region_without_gradients():
    def function(x, w):
        with torch.no_grad():
            inside = F.linear(x, w)
        return inside, F.linear(x + 1, w)

    with torch.enable_grad():
        gm = torch.fx.experimental.proxy_tensor.make_fx(function, pre_dispatch=True, tracing_mode="fake")(
            X, W
        )
    for placeholder in gm.graph.find_nodes(op="placeholder"):
        placeholder.meta["requires_grad"] = True
    found = rewritten(gm, grad=True)
    assert [s.status for s in found.sites] == ["matched", "rejected"]
    assert found.sites[1].code is Reason.REQUIRES_GRAD


def test_integers_carry_no_gradient():
    def function(x, w):
        index = x.argmax(-1)
        return F.linear(w[index], w)

    gm = tracked(function, X, W, needing={"x_1"})
    assert rewritten(gm, grad=True).matched == ["linear"]


# ------------------------------------------------------------------------------------------- autocast


def test_an_autocast_region():
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = F.linear(x, w)
        return inside, F.linear(x + 1, w)

    found = rewritten(function, X, W)
    assert [s.code for s in found.sites] == [Reason.AUTOCAST, None]


def test_an_autocast_around_everything():
    gm = trace(lambda x, w: F.linear(x, w), X, W)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert capture.in_autocast(gm) == set(gm.graph.nodes)
        assert rewritten(gm).of("linear").code is Reason.AUTOCAST


# -------------------------------------------------------------------------------------------- escapes

ESCAPES = {
    "scores": lambda q, k, v: (lambda s: (s.softmax(-1) @ v, s))(q @ k.mT),
    "probabilities": lambda q, k, v: (lambda p: (p @ v, p))((q @ k.mT).softmax(-1)),
    "probabilities, summed": lambda q, k, v: (lambda p: (p @ v, p.sum()))((q @ k.mT).softmax(-1)),
    "through dropout": lambda q, k, v: (lambda p: (p @ v, p))(F.dropout((q @ k.mT).softmax(-1), 0.1, False)),
    "through a cast": lambda q, k, v: (lambda p: (p @ v.double(), p.sum()))((q @ k.mT).softmax(-1).double()),
    "through a view": lambda q, k, v: (lambda p: (p @ v, p.mT + 1))((q @ k.mT).softmax(-1)),
}


@pytest.mark.parametrize("function", ESCAPES.values(), ids=list(ESCAPES))
def test_escapes(function):
    found = rewritten(function, Q, K, V)
    site = found.of("sdpa")
    assert site.code is Reason.ESCAPES
    assert "an inner value of the site, is" in site.detail
    assert found.after == found.before


def test_who_uses_it_is_said():
    site = rewritten(lambda q, k, v: (lambda p: (p @ v, p.sum()))((q @ k.mT).softmax(-1)), Q, K, V).of("sdpa")
    assert site.detail == "softmax, an inner value of the site, is also used by sum_1"
    site = rewritten(ESCAPES["probabilities"], Q, K, V).of("sdpa")
    assert site.detail == "softmax, an inner value of the site, is returned or stored by the model"


def test_operands_and_views_of_operands_may_be_used_elsewhere():
    def function(q, k, v):
        turned = k.mT
        out = (q @ turned).softmax(-1) @ v
        return out, turned + 1, q * 2, out.sum()

    found = rewritten(function, Q, K, V)
    assert found.matched == ["sdpa"]
    torch.testing.assert_close(found.gm(Q, K, V), function(Q, K, V))


def test_two_linears_on_one_matmul_with_bias():
    """The product is used twice: the bias cannot be taken in, the product can be replaced."""

    def function(x, w, b):
        y = F.linear(x, w)
        return y + b, y * 2

    found = rewritten(function, X, W, torch.randn(8))
    assert [(s.rule, s.status) for s in found.sites] == [("Linear", "matched")]


# ------------------------------------------------------------------------------------------- mutation


def mutated(write):
    def function(q, k, v):
        scores = q @ k.mT
        write(q, k, v)
        return scores.softmax(-1) @ v

    return function


@pytest.mark.parametrize(
    "write",
    [
        lambda q, k, v: q.mul_(2),
        lambda q, k, v: k.zero_(),
        lambda q, k, v: k[0].fill_(1),
        lambda q, k, v: q.transpose(1, 2).mul_(2),
    ],
)
def test_a_write_between_the_nodes_of_a_site(write):
    found = rewritten(mutated(write), Q, K, V)
    site = found.of("sdpa")
    assert site.code is Reason.MUTATION
    inputs = [t.clone() for t in (Q, K, V)]
    want = mutated(write)(*[t.clone() for t in (Q, K, V)])
    assert torch.equal(found.gm(*inputs), want)


def test_any_input_may_be_a_view_of_the_one_that_is_written_to():
    site = rewritten(mutated(lambda q, k, v: v.mul_(2)), Q, K, V).of("sdpa")
    assert site.code is Reason.MUTATION


def before(q, k, v):
    q.mul_(2)
    return attention(q, k, v)


def after(q, k, v):
    out = attention(q, k, v)
    q.mul_(2)
    k[0].fill_(0)
    return out, q


def of_the_result(q, k, v):
    out = attention(q, k, v)
    out.mul_(2)
    return out


def of_a_part(q, k, v):
    """Keys built in place, as rotary embeddings do."""
    keys = torch.empty_like(k)
    keys[..., :4] = k[..., 4:]
    keys[..., 4:] = k[..., :4]
    return attention(q, keys, v)


@pytest.mark.parametrize("function", [before, after, of_the_result, of_a_part])
def test_writes_that_do_no_harm(function):
    found = rewritten(function, Q, K, V)
    assert found.matched == ["sdpa"]
    ours = found.gm(*(t.clone() for t in (Q, K, V)))
    torch.testing.assert_close(ours, function(*(t.clone() for t in (Q, K, V))))


def test_a_narrowed_operand_that_is_written_to():
    """``q.double()`` is bound to q: a write to q after the cast is one in between."""

    def function(q, k, v):
        wide = q.bfloat16().float()
        half = q.bfloat16()
        w = half.float()
        half.mul_(2)
        return ((w @ k.float().mT).softmax(-1) @ v.float()).bfloat16(), wide

    inputs = Q, K.bfloat16(), V.bfloat16()
    found = rewritten(function, *inputs)
    torch.testing.assert_close(found.gm(*inputs), function(*inputs), rtol=0.02, atol=0.02)
