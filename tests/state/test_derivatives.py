"""The operators have no derivatives: whoever wants one gets it from the original code."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import fxrewrite

pytestmark = pytest.mark.usefixtures("any_kernel")


class Attention(nn.Module):
    """Written out, so that every mode of differentiation knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = self.layer(x)
        return (y @ y.mT * 0.2).softmax(-1) @ y


@pytest.fixture
def models():
    """(plain, rewritten and compiled without a gradient); the parameters are frozen."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Attention().eval().requires_grad_(False)
    fast = fxrewrite.rewrite(plain)
    fast(X)
    assert [site.kind for site in fast.report.matched] == ["linear", "sdpa"]
    return plain, fast


X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


def tangent(model):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, torch.ones_like(X)))).tangent


def gradient(call):
    x = X.clone().requires_grad_()
    call(x).square().sum().backward()
    return x.grad


DERIVATIVES = {
    "backward": lambda m: gradient(m),
    "checkpoint": lambda m: gradient(lambda x: checkpoint(m, x, use_reentrant=False)),
    "reentrant checkpoint": lambda m: gradient(lambda x: checkpoint(m, x, use_reentrant=True)),
    "dual numbers": tangent,
    "jvp": lambda m: torch.func.jvp(m, (X,), (torch.ones_like(X),))[1],
    "jacfwd": lambda m: torch.func.jacfwd(m)(X[:1, :2]),
    "jacrev": lambda m: torch.func.jacrev(m)(X[:1, :2]),
    "hessian": lambda m: torch.func.hessian(lambda x: m(x).sum())(X[:1, :2]),
    "vmap of grad": lambda m: torch.vmap(torch.func.grad(lambda x: m(x[None]).square().sum()))(X),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_as_in_eager(models, name):
    plain, fast = models
    # a re-entrant checkpoint runs the forward pass without gradients: with our operators' rounding
    torch.testing.assert_close(DERIVATIVES[name](fast), DERIVATIVES[name](plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["dual numbers", "jvp", "jacfwd"])
def test_forward_mode_ignores_no_grad(models, name):
    plain, fast = models
    with torch.no_grad():
        torch.testing.assert_close(DERIVATIVES[name](fast), DERIVATIVES[name](plain), rtol=0, atol=0)


def test_gradients_enabled_inside(models):
    class Guided(nn.Module):
        """A gradient by the input, taken inside: classifier guidance, say."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention().requires_grad_(False)

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.inner(x).square().sum(), x)[0]

    plain = Guided()
    with torch.no_grad():
        assert torch.equal(fxrewrite.rewrite(plain)(X), plain(X))


def test_a_gradient_through_half_of_a_model():
    class Half(Attention):
        def forward(self, x):
            with torch.no_grad():
                x = self.layer(x)
            return self.layer(x)

    plain = Half()
    fast = fxrewrite.rewrite(plain)
    out = fast(X)
    assert [site.status for site in fast.report.sites] == ["matched", "rejected"]
    out.sum().backward()
    ours = plain.layer.weight.grad.clone()
    plain.zero_grad()
    plain(X).sum().backward()
    torch.testing.assert_close(ours, plain.layer.weight.grad)
