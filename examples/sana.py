"""A real SANA transformer, scanned, rewritten, verified against float64 and timed.

    python examples/sana.py [--layers 2] [--size 32]

The layers have the sizes of SANA 1.6B (70 linear-attention heads of 32, 20 cross-attention heads of
112), with random weights; ``--size 32`` is the latent of a 1024 x 1024 image, 1024 tokens.
"""

import argparse
import copy
import statistics
import time

import torch
from diffusers import SanaTransformer2DModel

import fxrewrite


def sana(layers: int = 2, size: int = 32):
    """(model, args, kwargs) of one denoising step, in bfloat16."""
    torch.manual_seed(0)
    model = SanaTransformer2DModel(num_layers=layers, sample_size=size).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no layer may be zero or the identity
            if parameter.dim() > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    inputs = {
        "hidden_states": torch.randn(1, 32, size, size, dtype=torch.bfloat16),
        "encoder_hidden_states": torch.randn(1, 300, 2304, dtype=torch.bfloat16),
        "timestep": torch.tensor([500.0], dtype=torch.bfloat16),
        "return_dict": False,
    }
    return model, (), inputs


def rms(tensor: torch.Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    model, _, inputs = sana(options.layers, options.size)

    with torch.no_grad():
        # 1. What would be replaced, and what not, and why: nothing is computed for this.
        print("1. scan\n")
        print(fxrewrite.analyze(model, (), inputs))

        # 2. The same model, faster; `model` itself stays as it is.
        started = time.perf_counter()
        fast = fxrewrite.rewrite(model, (), inputs)
        result = fast(**inputs)[0]
        seconds = time.perf_counter() - started
        print(f"2. rewrite: {fast.report.summary()}; {seconds:.1f} s with the first call\n")

        # 3. Both against the same model in float64.
        print("3. verify: RMS error against float64, relative to the output's RMS")
        precise = copy.deepcopy(model).double()
        wide = {k: v.double() if torch.is_tensor(v) else v for k, v in inputs.items()}
        reference = precise(**wide)[0]
        eager = model(**inputs)[0]
        errors = [rms(out.double() - reference) / rms(reference) for out in (eager, result)]
        print(f"   eager {errors[0]:.3e}   rewritten {errors[1]:.3e}   ratio {errors[1] / errors[0]:.2f}\n")

        # 4. Both in turn, so that a noisy machine hits both alike.
        print(f"4. time: {options.rounds} rounds, {torch.get_num_threads()} threads")
        fxrewrite.reset_counters()
        times: dict[str, list[float]] = {"eager": [], "rewritten": []}
        for _ in range(options.rounds):
            for name, module in (("eager", model), ("rewritten", fast)):
                started = time.perf_counter()
                module(**inputs)
                times[name].append(time.perf_counter() - started)
        for name, taken in times.items():
            median, least = statistics.median(taken) * 1e3, min(taken) * 1e3
            print(f"   {name:10} median {median:7.1f} ms   minimum {least:7.1f} ms")
        median, least = (f(times["eager"]) / f(times["rewritten"]) for f in (statistics.median, min))
        print(f"   speed-up   median {median:7.2f}      minimum {least:7.2f}")
        print("\n   kernels that ran, and how often:")
        for op, implementations in fxrewrite.counters().items():
            print(f"   {op}: " + ", ".join(f"{name} {n}" for name, n in implementations.items()))


if __name__ == "__main__":
    main()
