"""Linear layers as contractions: einsum, tensordot and convolutions of kernel size 1, and their twins."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.patterns.test_linear import t
from tests.support.graphs import assert_right, lines, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")

X, W, B = t(4, 9, 40, seed=1), t(24, 40, seed=2), t(24, seed=3)
IMAGE = t(2, 6, 5, 40, seed=4).permute(0, 3, 1, 2)  # channels last
CUBE = t(2, 3, 6, 5, 40, seed=5).permute(0, 4, 1, 2, 3)


def einsum(equation):
    return lambda x, w: torch.einsum(equation, x, w)


def test_heads_before_and_after():
    found = rewritten(einsum("btd,dhk->bthk"), X, t(40, 3, 8))
    assert found.after == lines("""
        permute_default = permute.default(w_1, [1, 2, 0])
        reshape_default = reshape.default(permute_default, [24, 40])
        linear_default = fxrewrite.linear.default(x_1, reshape_default, None)
        reshape_default_1 = reshape.default(linear_default, [4, 9, 3, 8])
        return reshape_default_1
    """)
    assert found.of("linear").rule == "Projection"


SPELLINGS = {
    "einsum": (einsum("btd,nd->btn"), (X, W)),
    "einsum, weight [K, N]": (einsum("btd,dn->btn"), (X, W.t().contiguous())),
    "einsum, weight first": (lambda x, w: torch.einsum("nd,btd->btn", w, x), (X, W)),
    "einsum, rank 2": (einsum("td,nd->tn"), (X[0], W)),
    "einsum, to heads": (einsum("btd,dhk->bthk"), (X, t(40, 3, 8))),
    "einsum, to heads before tokens": (einsum("btd,hkd->bhtk"), (X, t(3, 8, 40))),
    "einsum, from heads": (einsum("bthk,hkd->btd"), (t(4, 9, 3, 8), t(3, 8, 40))),
    "einsum, from heads after tokens": (
        einsum("bhtk,hkd->btd"),
        (t(4, 9, 3, 8).transpose(1, 2), t(3, 8, 40)),
    ),
    "einsum, ellipsis": (einsum("...d,nd->...n"), (X, W)),
    "einsum, output turned": (einsum("btd,nd->bnt"), (X, W)),
    "tensordot": (lambda x, w: torch.tensordot(x, w, dims=([2], [1])), (X, W)),
    "tensordot, by number": (lambda x, w: torch.tensordot(x, w, dims=1), (X, W.t().contiguous())),
    "tensordot, two dims": (lambda x, w: torch.tensordot(x, w, 2), (t(4, 9, 3, 8), t(3, 8, 40))),
    "conv2d": (F.conv2d, (IMAGE, W[:, :, None, None], B)),
    "conv2d, no bias": (F.conv2d, (IMAGE, W[:, :, None, None])),
    "conv2d, dilated": (lambda x, w: F.conv2d(x, w, dilation=2), (IMAGE, W[:, :, None, None])),
    "conv2d, one image": (F.conv2d, (IMAGE[0], W[:, :, None, None], B)),
    "conv3d": (F.conv3d, (CUBE, W[:, :, None, None, None], B)),
    "conv1d, tokens turned": (lambda x, w, b: F.conv1d(x.mT, w, b).mT, (X, W[:, :, None], B)),
    "matmul, weight broadcast": (lambda x, w: x @ w.t()[None].expand(4, 40, 24), (X, W)),
    "bmm, weight broadcast": (lambda x, w: torch.bmm(x, w.t().unsqueeze(0).expand(4, -1, -1)), (X, W)),
}


@pytest.mark.parametrize(("function", "inputs"), SPELLINGS.values(), ids=list(SPELLINGS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_spellings(function, inputs, dtype):
    inputs = tuple(x.to(dtype) for x in inputs)
    found = rewritten(function, *inputs)
    site = found.of("linear")
    assert site.matched, site.reason
    assert_right(found, function, *inputs)


REFUSED = {
    "channels first": (F.conv2d, (IMAGE.contiguous(), W[:, :, None, None]), "innermost in memory"),
    "tokens last": (einsum("bdt,nd->btn"), (X.mT.contiguous(), W), "innermost in memory"),
    "heads of another order": (
        einsum("bthk,khd->btd"),
        (t(4, 9, 3, 8), t(8, 3, 40)),
        "the weight is a matrix in memory",
    ),
    "dtypes": (einsum("btd,nd->btn"), (X.int(), W.int()), "x is torch.int32"),
}


@pytest.mark.parametrize(("function", "inputs", "said"), REFUSED.values(), ids=list(REFUSED))
def test_refused(function, inputs, said):
    found = rewritten(function, *inputs)
    site = found.of("linear")
    assert (site.status, site.code) == ("rejected", Reason.GUARD)
    assert said in site.detail or said in " ".join(j.guard for j in site.judgements)
    assert found.after == found.before


TWINS = {
    "a kernel of 3": (lambda x, w: F.conv2d(x, w.expand(24, 40, 3, 3)), (IMAGE, W[:, :, None, None])),
    "a stride": (lambda x, w: F.conv2d(x, w, stride=2), (IMAGE, W[:, :, None, None])),
    "padding": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, W[:, :, None, None])),
    "groups": (lambda x, w: F.conv2d(x, w[:, :20], groups=2), (IMAGE, W[:, :, None, None])),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w), (IMAGE, W.t()[:, :, None, None])),
    "a matrix a head": (einsum("bhtd,hde->bhte"), (t(2, 3, 9, 8), t(3, 8, 8))),
    "a sum over a dim of one": (einsum("btd,nd->bn"), (X, W)),
    "a diagonal": (einsum("bdd,nd->bn"), (t(2, 40, 40), W)),
    "an outer product": (einsum("bt,nd->btnd"), (t(4, 9), W)),
    "computed operands": (lambda x, w: torch.einsum("btd,nd->btn", x + 1, w + 1), (X, W)),
    "a matrix for each batch": (lambda x, w: torch.bmm(x + 1, w + 1), (X, t(4, 40, 24))),
    "three operands": (lambda x, w: torch.einsum("btd,nd,n->btn", x, w, w[:, 0]), (X, W)),
}


@pytest.mark.parametrize(("function", "inputs"), TWINS.values(), ids=list(TWINS))
def test_twins(function, inputs):
    found = rewritten(function, *inputs)
    assert not found.matched
    assert found.after == found.before
