"""Whole models of real width and few layers, on random bfloat16 weights: eager, Inductor, zentorch, fxrewrite.

    python tests/benchmarks/bench_models.py [--only sana,flux,sd3,llama] [--layers 2] [--rounds 7] [--threads 1]

One forward pass each, all sides interleaved; times are wall times, so the machine must be quiet. "llama" is a
prompt of 512 tokens; "decode" is one token. fxrewrite is `rewrite` with what follows it left to eager and to
Inductor. "error" is the RMS difference to eager's result over its RMS. zentorch takes part where it is installed.
Each model has a process of its own: zentorch's packed weights outlive a model, and spoil the next.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import fxrewrite

BF16 = torch.bfloat16
Case = tuple[torch.nn.Module, dict[str, Any]]


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights of the usual size: no layer may be zero or the identity."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    return model.to(BF16).eval()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def sana(layers: int) -> Case:
    """SANA-Video 2B: 20 heads of 112, 4 frames of 28 x 28 in patches of 2 x 2 (784 tokens)."""
    from diffusers import SanaVideoTransformer3DModel

    model = SanaVideoTransformer3DModel(num_layers=layers)
    text = model.config.caption_channels
    return drawn(model), {
        "hidden_states": randn(1, model.config.in_channels, 4, 28, 28),
        "encoder_hidden_states": randn(1, 300, text),
        "timestep": torch.tensor([500.0], dtype=BF16),
        "return_dict": False,
    }


def flux(layers: int) -> Case:
    """FLUX.1: 24 heads of 128, 1024 latent and 512 text tokens, half of the layers with two streams."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(num_layers=layers // 2, num_single_layers=layers - layers // 2)
    return drawn(model), {
        "hidden_states": randn(1, 1024, 64),
        "encoder_hidden_states": randn(1, 512, 4096),
        "pooled_projections": randn(1, 768),
        "timestep": torch.tensor([0.5], dtype=BF16),
        "img_ids": torch.zeros(1024, 3),
        "txt_ids": torch.zeros(512, 3),
        "return_dict": False,
    }


def sd3(layers: int) -> Case:
    """Stable Diffusion 3 medium: 24 heads of 64, 1024 latent and 154 text tokens."""
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        num_layers=layers,
        num_attention_heads=24,
        caption_projection_dim=1536,
        pos_embed_max_size=192,
        sample_size=64,
    )
    return drawn(model), {
        "hidden_states": randn(1, 16, 64, 64),
        "encoder_hidden_states": randn(1, 154, 4096),
        "pooled_projections": randn(1, 2048),
        "timestep": torch.tensor([500.0], dtype=BF16),
        "return_dict": False,
    }


def llama(layers: int, tokens: int = 512) -> Case:
    """A decoder as Llama-3-8B's: width 4096, 32 heads of 128 on 8 of keys, MLP 14336."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_hidden_layers=layers,
    )
    return drawn(LlamaModel(config)), {
        "input_ids": torch.randint(0, 1024, (1, tokens)),
        "use_cache": False,
        "return_dict": False,
    }


CASES: dict[str, Callable[[int], Case]] = {
    "sana": sana,
    "flux": flux,
    "sd3": sd3,
    "llama": llama,
    "decode": lambda layers: llama(layers, 1),
}


def sides(model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The model as each of the competitors runs it. "eager" is first."""
    found: dict[str, Callable[..., Any]] = {
        "eager": model,
        "inductor": torch.compile(model, dynamic=False),
    }
    if importlib.util.find_spec("zentorch") is not None:
        importlib.import_module("zentorch")
        # a model of its own: zentorch packs the weights in place, which all others would then read packed
        found["zentorch"] = torch.compile(copy.deepcopy(model), backend="zentorch", dynamic=False)
    for then in ("eager", "inductor"):
        found[f"fxrewrite, then {then}"] = fxrewrite.rewrite(model, (), inputs, then=then)
    return found


def first(result: Any) -> torch.Tensor:
    return result[0].double() if isinstance(result, tuple) else result.double()


def measure(name: str, layers: int, rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, inputs = CASES[name](layers)
    with torch.no_grad():
        competitors = sides(model, inputs)
        want = first(model(**inputs))
        errors = {}
        for side, run in list(competitors.items()):
            try:
                errors[side] = (first(run(**inputs)) - want).square().mean().sqrt()
            except RuntimeError as error:
                if side != "zentorch":
                    raise
                print(
                    f"| {name} | {side} | fails: {' '.join(str(error).splitlines()[:2])} | | | |", flush=True
                )
                del competitors[side]
        samples: dict[str, list[float]] = {side: [] for side in competitors}
        for _ in range(rounds):
            for side, run in competitors.items():
                begin = time.perf_counter()
                run(**inputs)
                samples[side].append(time.perf_counter() - begin)
    eager = statistics.median(samples["eager"])
    for side, times in samples.items():
        middle = statistics.median(times)
        error = errors[side] / want.square().mean().sqrt()
        print(
            f"| {name} | {side} | {middle * 1e3:.1f} | {min(times) * 1e3:.1f} | {eager / middle:.2f} | {error:.1e} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print("| model | run by | median ms | min ms | eager / this | error |")
    print("|---|---|--:|--:|--:|--:|", flush=True)
    for name in options.only.split(","):
        arguments = (name, options.layers, options.rounds, options.threads)
        process = multiprocessing.get_context("spawn").Process(target=measure, args=arguments)
        process.start()
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"{name}: its process ended with exit code {process.exitcode}")


if __name__ == "__main__":
    main()
