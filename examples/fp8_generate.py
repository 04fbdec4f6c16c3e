"""A language model with FP8 weights, rewritten in place, so that its own ``generate`` runs the kernels.

    python examples/fp8_generate.py

The layers keep their weights in one byte each, with a scale for each output (W8A16). Written in plain
PyTorch, each call decodes the whole weight; the operator reads the bytes as they are.
"""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import fxrewrite


class Fp8Linear(nn.Module):
    """A linear layer on FP8 weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.abs().amax(dim=1, keepdim=True) / 448  # the largest E4M3 number
        self.register_buffer("weight", (linear.weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


def language_model() -> LlamaForCausalLM:
    """A small Llama with random weights; the linears of its layers in FP8."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parent in list(model.model.layers.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, Fp8Linear(child))
    return model


def main() -> None:
    model = language_model()
    prompt = torch.randint(1, 500, (1, 12))
    options = {"max_new_tokens": 8, "do_sample": False}
    with torch.no_grad():
        before = model.generate(prompt, **options)
        fxrewrite.rewrite(model, inplace=True)
        fxrewrite.reset_counters()
        after = model.generate(prompt, **options)
    print(model.forward.report.summary())
    print(f"tokens before: {before[0, 12:].tolist()}")
    print(f"tokens after:  {after[0, 12:].tolist()}")
    for op, implementations in fxrewrite.counters().items():
        print(f"{op}: " + ", ".join(f"{name} ran {n} times" for name, n in implementations.items()))
    fxrewrite.restore(model)


if __name__ == "__main__":
    main()
