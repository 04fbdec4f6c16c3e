"""FLUX on a CPU: a small transformer on random weights, rewritten, run at two image sizes and timed.

    python examples/flux_cpu.py [--rounds 5]

The layers are those of FLUX.1 (joint and single blocks, rotary embeddings, 128 wide heads), fewer and
narrower. The second image size is none that was seen before: shapes are checked at every call.
"""

import argparse
import statistics
import time

import torch
from diffusers import FluxTransformer2DModel

import fxrewrite


def transformer() -> torch.nn.Module:
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=2,
        num_attention_heads=4,
        joint_attention_dim=256,
        pooled_projection_dim=128,
        guidance_embeds=True,
    )
    return model.to(torch.bfloat16).eval()


def inputs(side: int, text_tokens: int = 32) -> dict:
    """Of one denoising step of an image of 16 * ``side`` pixels a side."""
    tokens = side * side
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return {
        "hidden_states": torch.randn(1, tokens, 64, dtype=torch.bfloat16),
        "encoder_hidden_states": torch.randn(1, text_tokens, 256, dtype=torch.bfloat16),
        "pooled_projections": torch.randn(1, 128, dtype=torch.bfloat16),
        "timestep": torch.tensor([0.5], dtype=torch.bfloat16),
        "guidance": torch.tensor([3.5], dtype=torch.bfloat16),
        "img_ids": torch.stack([torch.zeros(tokens), rows.flatten(), columns.flatten()], dim=1),
        "txt_ids": torch.zeros(text_tokens, 3),
        "return_dict": False,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    model = transformer()
    with torch.no_grad():
        fast = fxrewrite.rewrite(model, (), inputs(16))
        print(fast.report.summary())
        for side in (16, 24):
            given = inputs(side)
            difference = (fast(**given)[0] - model(**given)[0]).abs().max().item()
            times: dict[str, list[float]] = {"eager": [], "rewritten": []}
            for _ in range(rounds):  # in turn, so that a noisy machine hits both alike
                for name, module in (("eager", model), ("rewritten", fast)):
                    started = time.perf_counter()
                    module(**given)
                    times[name].append(time.perf_counter() - started)
            medians = {name: statistics.median(taken) * 1e3 for name, taken in times.items()}
            print(
                f"{16 * side} pixels: largest difference {difference:.3g}; eager {medians['eager']:.1f} ms, "
                f"rewritten {medians['rewritten']:.1f} ms"
            )


if __name__ == "__main__":
    main()
