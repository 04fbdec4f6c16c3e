"""Modules that are stored in FP8 and cast themselves around their forward."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import fxrewrite

pytestmark = pytest.mark.usefixtures("any_kernel")
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def cast_around_forward(module: nn.Module) -> None:
    """What libraries' hooks do: `forward` becomes a partial of a closure over the module's own."""
    module.to(FP8)
    own = module.forward

    def forward(module, *args, **kwargs):
        module.to(dtype=BF16)
        out = own(*args, **kwargs)
        module.to(dtype=FP8)
        return out

    module.forward = functools.update_wrapper(functools.partial(forward, module), own)


class Model(nn.Module):
    def __init__(self, whole: bool):
        super().__init__()
        self.up, self.down = nn.Linear(32, 48).to(BF16), nn.Linear(48, 32).to(BF16)
        for module in (self,) if whole else (self.up, self.down):
            cast_around_forward(module)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.fixture(params=[False, True], ids=["each layer", "the whole model"])
def model(request):
    torch.manual_seed(0)
    return Model(request.param).requires_grad_(False)


X = torch.randn(3, 32, generator=torch.Generator().manual_seed(1)).to(BF16)


def test_it_is_one_graph_with_every_layer_a_site(model):
    fast = fxrewrite.rewrite(model, (X,))
    sites = fast.report.sites
    assert [(s.kind, s.status) for s in sites if s.kind == "fp8_matmul"] == [("fp8_matmul", "matched")] * 2
    wanted = model(X)
    with torch.no_grad():
        ours = fast(X)
    assert len(fast.report.captures) == 1
    torch.testing.assert_close(ours, wanted, rtol=0.02, atol=0.02)


def test_weights_stay_as_they_are_and_are_shared(model):
    before = {name: (p, p.data_ptr()) for name, p in model.named_parameters()}
    fast = fxrewrite.rewrite(model, (X,))
    with torch.no_grad():
        fast(X)
    for owner in (model, fast):
        for name, p in owner.named_parameters():
            assert (p, p.data_ptr()) == before[name]
            assert p.dtype == FP8
            assert name.rpartition(".")[2] not in vars(owner.get_submodule(name.rpartition(".")[0]))
    assert "to" not in vars(model.up)


def test_a_copy_calls_its_own_modules(model):
    fast = fxrewrite.rewrite(model)
    with torch.no_grad():
        fast.up.weight = nn.Parameter(torch.zeros(48, 32).to(FP8), requires_grad=False)
        fast.up.bias = nn.Parameter(torch.zeros(48).to(FP8), requires_grad=False)
        ours, bias = fast(X), fast.down.bias.to(BF16)
    assert torch.equal(ours, bias.expand(3, 32))
    assert not torch.equal(model(X), ours)


def test_outside_of_the_forward_to_is_the_modules_own(model):
    fast = fxrewrite.rewrite(copy.deepcopy(model), inplace=True)
    fast.up.to(torch.float32)
    assert fast.up.weight.dtype == torch.float32
    assert "weight" not in vars(fast.up)


def test_restore_takes_everything_away(model):
    fast = fxrewrite.restore(fxrewrite.rewrite(model, inplace=True))
    assert all("to" not in vars(m) for m in fast.modules())
    with torch.no_grad():
        assert fast(X).dtype == BF16
