"""Linear layers: the forms in ATen that are sites, and the twins that are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.support.graphs import assert_right, lines, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")


def t(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


X, X3, W, B = t(33, 40, seed=1), t(4, 9, 40, seed=2), t(24, 40, seed=3), t(24, seed=4)


def test_biased_before_and_after():
    found = rewritten(lambda x, w, b: x @ w.t() + b, X, W, B)
    assert found.before == lines("""
        t = t.default(w_1)
        matmul = matmul.default(x_1, t)
        add = add.Tensor(matmul, b_1)
        return add
    """)
    assert found.after == lines("""
        linear_default = fxrewrite.linear.default(x_1, w_1, b_1)
        return linear_default
    """)
    assert found.of("linear").rule == "BiasedLinear"


def test_weight_stored_transposed():
    found = rewritten(lambda x, w: x @ w, X, W.t().contiguous())
    assert found.after == lines("""
        permute_default = permute.default(w_1, [1, 0])
        linear_default = fxrewrite.linear.default(x_1, permute_default, None)
        return linear_default
    """)


SPELLINGS = {
    "linear": (F.linear, (X, W)),
    "linear with bias": (F.linear, (X, W, B)),
    "keywords": (lambda x, w, b: F.linear(x, bias=b, weight=w), (X, W, B)),
    "rank 3": (F.linear, (X3, W, B)),
    "rank 1": (F.linear, (X[0], W, B)),
    "rank 4": (F.linear, (t(4, 1, 9, 40), W)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.t()), (X, W, B)),
    "mm": (lambda x, w: torch.mm(x, w.t()), (X, W)),
    "matmul": (lambda x, w: torch.matmul(x, w.T), (X3, W)),
    "matmul, weight as used": (lambda x, w: x @ w, (X3, W.t().contiguous())),
    "matmul, permuted": (lambda x, w: x @ w.permute(1, 0), (X, W)),
    "weight copied": (lambda x, w: x @ w.t().contiguous(), (X, W)),
    "bias on the left": (lambda x, w, b: b + x @ w.t(), (X3, W, B)),
    "bias in place": (lambda x, w, b: (x @ w.t()).add_(b), (X3, W, B)),
    "bias by add": (lambda x, w, b: torch.add(F.linear(x, w), b), (X3, W, B)),
    "float32": (F.linear, (X.float(), W.float())),
    "float16": (F.linear, (X.half(), W.half(), B.half())),
    "one output": (F.linear, (X, W[:1], B[:1])),
    "one input": (F.linear, (X[:, :1], W[:, :1], B)),
    "written to later": (lambda x, w: F.linear(x, w).relu_(), (X, W)),
    "computed weight": (lambda x, w: F.linear(x, w + 1), (X, W)),
}


@pytest.mark.parametrize(("function", "inputs"), SPELLINGS.values(), ids=list(SPELLINGS))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_spellings(function, inputs, dynamic):
    found = rewritten(function, *inputs, dynamic=dynamic)
    site = found.of("linear")
    assert site.matched, site.reason
    assert len(found.sites) == 1
    assert_right(found, function, *inputs)


# what is added is no bias of the layer: the product alone is the site
NOT_A_BIAS = {
    "a number": (lambda x, w: F.linear(x, w) + 1, (X, W)),
    "a column": (lambda x, w, r: F.linear(x, w) + r, (X, W, t(33, 1))),
    "one element": (lambda x, w, b: F.linear(x, w) + b, (X, W, t(1))),
    "a computed vector": (lambda x, w, b: F.linear(x, w) + b.relu(), (X, W, B)),
    "of another dtype": (lambda x, w, b: F.linear(x, w) + b, (X, W, B.double())),
    "scaled": (lambda x, w, b: torch.add(F.linear(x, w), b, alpha=2), (X, W, B)),
    "after an operator": (lambda x, w, b: F.linear(x, w).exp() + b, (X, W, B)),
    "subtracted": (lambda x, w, b: F.linear(x, w) - b, (X, W, B)),
}


@pytest.mark.parametrize(("function", "inputs"), NOT_A_BIAS.values(), ids=list(NOT_A_BIAS))
def test_not_a_bias(function, inputs):
    found = rewritten(function, *inputs)
    site = found.of("linear")
    assert (site.rule, site.status) == ("Linear", "matched")
    assert ", None)" in found.after
    assert_right(found, function, *inputs)


TWINS = {
    "addmm with beta": lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5),
    "addmm with alpha": lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2),
    "addmm of a matrix": lambda x, w, b: torch.addmm(x[:, :24], x, w.t()),
    "two computed matrices": lambda x, w, b: (x + 1) @ (w + 1).t(),
    "a product of three": lambda x, w, b: x[None] @ (w[None] + b[:, None]).mT,
    "a vector on the right": lambda x, w, b: x @ w[0],
    "bilinear": lambda x, w, b: F.bilinear(x, x, w[:, :, None].expand(24, 40, 40), b),
}


@pytest.mark.parametrize("function", TWINS.values(), ids=list(TWINS))
def test_twins(function):
    found = rewritten(function, X, W, B)
    assert not found.matched
    assert found.after == found.before


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((X.double(), W.double(), B.double()), None),
        ((X.int(), W.int(), B.int()), "x is torch.int32"),
        ((X.cfloat(), W.cfloat(), B.cfloat()), "x is torch.complex64"),
    ],
)
def test_dtypes(inputs, said):
    found = rewritten(F.linear, *inputs)
    site = found.of("linear")
    assert site.matched == (said is None)
    if said:
        assert (site.code, said in site.detail) == (Reason.GUARD, True)


def test_a_bias_of_one_element_of_the_layer_itself():
    """F.linear takes it, and so must whatever runs."""
    inputs = X, W, t(1)
    assert_right(rewritten(F.linear, *inputs), F.linear, *inputs)


def test_a_residual_of_one_row():
    """As wide as the output and of one row: a vector in all but rank, but no stored vector."""
    function = lambda x, w, r: F.linear(x, w) + r  # noqa: E731
    inputs = X[:1], W, t(1, 24)
    found = rewritten(function, *inputs)
    assert "residual=" in found.after
    assert_right(found, function, *inputs)
