"""LoRA by peft, and weights that arrive at the call by accelerate: each change is seen by the next call."""

from __future__ import annotations

import pytest
import torch

import fxrewrite
from tests.support.block import BF16, block, right, tokens

pytestmark = pytest.mark.usefixtures("any_kernel")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def filled(model):
    """Adapters start as zeros: give them values."""
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape).to(BF16) * 0.1
    return model.eval()


def config():
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(r=4, target_modules=["qkv", "out"])


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", ["rewritten, then adapted", "adapted, then rewritten"])
def test_lora(wrapped):
    peft = pytest.importorskip("peft")
    plain = filled(peft.get_peft_model(block(), config()))
    if wrapped.startswith("adapted"):
        fast = fxrewrite.rewrite(filled(peft.get_peft_model(block(), config())), (tokens(),))
    else:
        base = fxrewrite.rewrite(block(), inplace=True)
        base(tokens())
        fast = filled(peft.get_peft_model(base, config()))
    both = (fast, plain)
    right(*both)
    for change in (
        lambda m: m.disable_adapter_layers(),
        lambda m: m.enable_adapter_layers(),
        lambda m: m.merge_adapter(),
        lambda m: m.unmerge_adapter(),
        lambda m: (m.add_adapter("second", config()), m.set_adapter("second"), filled(m)),
        lambda m: (m.set_adapter("default"), m.delete_adapter("second")),
    ):
        for model in both:
            change(model)
        right(*both)


@pytest.mark.slow
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("first", ["offload", "rewrite"])
def test_offloaded_weights(first, inplace):
    accelerate = pytest.importorskip("accelerate")
    device = torch.device("cpu")
    if first == "offload":
        fast = fxrewrite.rewrite(accelerate.cpu_offload(block(), execution_device=device), inplace=inplace)
    else:
        fast = fxrewrite.rewrite(block(), inplace=inplace)
        fast(tokens())
        fast = accelerate.cpu_offload(fast, execution_device=device)
    for x in (tokens(), tokens(3, 9)):
        right(fast, block(), x)
    assert all(parameter.is_meta for parameter in fast.parameters())
    assert {site.kind for site in fast.report.matched} == {"linear", "sdpa"}
