"""What is done to a rewritten model after it has run: the next call must see it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import fxrewrite
from tests.support.block import BF16, WIDTH, block, kinds, right, tokens

pytestmark = pytest.mark.usefixtures("any_kernel")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def fast():
    """A rewritten ``block()`` that has run."""
    model = fxrewrite.rewrite(block(), (tokens(),))
    right(model, block())
    return model


class Double(nn.Module):
    def forward(self, weight):
        return weight * 2


def fill(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.bias, 3.0)


def halve_through_a_view(model):
    for parameter in model.parameters():
        parameter.view(-1)[::2].mul_(0.5)


def other_weight(model):
    torch.manual_seed(9)
    model.out.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).to(BF16))


def other_data(model):
    torch.manual_seed(9)
    model.out.weight.data = torch.randn(WIDTH, WIDTH).to(BF16).t()  # other strides, too


def no_bias(model):
    model.out.bias = None


def other_layer(model):
    torch.manual_seed(9)
    model.out = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)).to(BF16)


CHANGES = {
    "load_state_dict": lambda m: m.load_state_dict(block(3).state_dict()),
    "load_state_dict(assign=True)": lambda m: m.load_state_dict(block(3).state_dict(), assign=True),
    "in place, through a view": halve_through_a_view,
    "apply": lambda m: m.apply(fill),
    "another parameter": other_weight,
    "other data": other_data,
    "no bias": no_bias,
    "another layer": other_layer,
    "no layer": lambda m: setattr(m, "out", nn.Identity()),
    "a forward patched": lambda m: setattr(m.out, "forward", lambda x: x * 2),
    "a hook": lambda m: m.out.register_forward_hook(lambda module, args, out: out + 1),
    "a pre-hook": lambda m: m.out.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "a hook of the model": lambda m: m.register_forward_hook(lambda module, args, out: out + 1),
    "a parametrisation": lambda m: parametrize.register_parametrization(m.out, "weight", Double()),
    "share_memory": lambda m: m.share_memory(),
    "to_empty and loaded": lambda m: m.to_empty(device="cpu").load_state_dict(block(3).state_dict()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_seen_by_the_next_call(fast, name):
    plain = block()
    CHANGES[name](fast)
    CHANGES[name](plain)
    right(fast, plain)
    assert fast.report.matched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_to_another_dtype_and_back(fast, dtype):
    fast.to(dtype)
    right(fast, block().to(dtype), tokens(dtype=dtype))
    fast.to(BF16)
    right(fast, block())


def test_the_original_shares_what_to_does_to_the_copy():
    plain = block()
    fast = fxrewrite.rewrite(plain, (tokens(),))
    fast(tokens())
    plain.float()
    right(fast, plain, tokens(dtype=torch.float32))


def test_hooks_and_parametrisations_taken_off_again(fast):
    handle = fast.out.register_forward_hook(lambda module, args, out: out + 1)
    parametrize.register_parametrization(fast.qkv, "weight", Double())
    fast(tokens())
    handle.remove()
    parametrize.remove_parametrizations(fast.qkv, "weight", leave_parametrized=False)
    right(fast, block())


def test_a_hook_on_all_modules_runs_and_is_told(fast):
    add = lambda module, args, out: out + 1 if isinstance(module, nn.Linear) else None  # noqa: E731
    handle = nn.modules.module.register_module_forward_hook(add)
    try:
        assert torch.equal(fast(tokens()), block()(tokens()))
    finally:
        handle.remove()
    assert fast.report.notes == ["the original code runs while a hook on all modules is registered"]
    right(fast, block())


def test_parametrised_before():
    plain = block()
    parametrizations.weight_norm(plain.qkv)
    parametrize.register_parametrization(plain.out, "weight", Double())
    fast = fxrewrite.rewrite(plain, (tokens(),))
    right(fast, plain)
    plain.out.parametrizations.weight.original.mul_(-1)
    right(fast, plain)
    assert kinds(fast.report) == ["linear", "sdpa", "linear"]


def test_built_on_the_meta_device_and_loaded():
    with torch.device("meta"):
        empty = block()
    fast = fxrewrite.rewrite(empty)
    fast.load_state_dict(block().state_dict(), assign=True)
    right(fast, block())


def test_functional_call(fast):
    other = block(5)
    got = torch.func.functional_call(fast, dict(other.named_parameters()), (tokens(),))
    right(lambda _: got, other)


def test_a_rewritten_part_of_a_rewritten_model():
    plain = nn.Sequential(block(), block(1))
    outer = nn.Sequential(block(), block(1))
    fxrewrite.rewrite(outer[0], inplace=True)
    fast = fxrewrite.rewrite(outer, (tokens(),))
    right(fast, plain)
    assert len(fast.report.matched) == 6
    fxrewrite.restore(outer[0])
    right(fast, plain)
