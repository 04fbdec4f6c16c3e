"""One denoising step of SANA-Video, small, on random weights: its linear attention with rotary embeddings.

    python examples/sana_video.py [--layers 2]

SANA-Video turns queries and keys by their position in the numerator of its attention, but not in the
normaliser. The rule sees both, through the in-place writes of the rotary embedding.
"""

import argparse

import torch
from diffusers import SanaVideoTransformer3DModel

import fxrewrite


def step(layers: int = 2):
    """(model, args, kwargs): latents of 3 frames of 8 x 8, in bfloat16."""
    torch.manual_seed(0)
    model = SanaVideoTransformer3DModel(
        num_layers=layers,
        num_attention_heads=4,
        attention_head_dim=112,
        num_cross_attention_heads=4,
        cross_attention_head_dim=112,
        cross_attention_dim=448,
        caption_channels=256,
    )
    with torch.no_grad():
        for parameter in model.parameters():  # no layer may be zero or the identity
            if parameter.dim() > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    inputs = {
        "hidden_states": torch.randn(1, 16, 3, 8, 8, dtype=torch.bfloat16),
        "encoder_hidden_states": torch.randn(1, 20, 256, dtype=torch.bfloat16),
        "timestep": torch.tensor([500.0], dtype=torch.bfloat16),
        "return_dict": False,
    }
    return model.to(torch.bfloat16).eval(), (), inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    model, _, inputs = step(parser.parse_args().layers)
    with torch.no_grad():
        fast = fxrewrite.rewrite(model, (), inputs)
        print(fast.report.summary())
        fxrewrite.reset_counters()
        difference = (fast(**inputs)[0].double() - model(**inputs)[0].double()).square().mean().sqrt()
    print(f"RMS difference to the original: {difference:.2e}")
    for op, implementations in fxrewrite.counters().items():
        print(f"{op}: " + ", ".join(f"{name} ran {n} times" for name, n in implementations.items()))


if __name__ == "__main__":
    main()
