"""What channels-last would give decoders of images and video: why no rule changes the layout of convolutions.

    python tests/benchmarks/bench_conv_layout.py [ops|kl|wan] [--dtype bfloat16] [--size 16] [--seconds 1]

On one thread, sides interleaved in one process, on CPU time. "ops": each operator that such a decoder chains,
on contiguous and on channels-last operands, at the widths of AutoencoderKL (2d) and AutoencoderKLWan (3d);
"faster" is contiguous / channels-last. Errors are RMS, against float64; the contract allows a replacement
1.25 times eager's. "kl" and "wan": a whole decoder of random weights on a latent of ``--size`` (images are 8
times as wide and high) beside itself with all its weights in channels-last, which eager then hands on from
operator to operator: the most that a rule could gain, before any conversion.

No rule changes layouts, for two reasons that this shows (Zen 4, torch 2.13). The numbers are worse: eager's
channels-last group_norm subtracts a squared mean from a mean of squares (float32: 70 times the error, and
1000 times where a mean is 30 times the deviation; bfloat16: 6 times there), and its float32 conv2d has up to
4 times the error, conv3d 3 times. And there is little to gain: eager's convolution reorders what it needs, and
reaches what the machine can in bfloat16 with 256 channels or more. Whole decoders gain 1.1 in bfloat16; in
float32 1.07 to 1.10 (kl) and nothing (wan). Most of what wan gains is its norms over the channels, which eager
computes 10 times as fast when channels are innermost.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

Tensor = torch.Tensor
LAYOUT = {4: torch.channels_last, 5: torch.channels_last_3d}


def interleaved(sides: list[Callable[[], object]], seconds: float) -> list[float]:
    """The median time of each side in seconds, of at least 2 rounds."""
    samples: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while len(samples[0]) < 2 or time.perf_counter() < end:
        for times, side in zip(samples, sides, strict=True):
            begin = time.process_time()
            side()
            times.append(time.process_time() - begin)
    return [statistics.median(times) for times in samples]


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).square().mean().sqrt() / want.square().mean().sqrt())


def last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=LAYOUT[tensor.dim()]) if tensor.dim() in LAYOUT else tensor


def group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x, 32)


def normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def upsample(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def conv3d(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv3d(x, weight, padding=1)


IMAGES = [(512, 64, 64), (512, 128, 128), (256, 128, 128), (128, 256, 256)]
VIDEOS = [(384, 4, 32, 32), (192, 4, 64, 64), (96, 4, 128, 128)]


def ops(dtype: torch.dtype, seconds: float) -> None:
    print("| operator | dtype | shape | contiguous ms | faster | error, contiguous | channels-last |")
    print("|---|---|---|--:|--:|--:|--:|")

    def row(operator: Callable[..., Tensor], shape: tuple[int, ...], note: str = "", mean: float = 0) -> None:
        operands = [torch.randn(1, *shape) + mean]
        if operator in (conv2d, conv3d):
            taps = 3 ** (len(shape) - 1)
            operands.append(
                torch.randn(shape[0], shape[0], *[3] * (len(shape) - 1)) * (shape[0] * taps) ** -0.5
            )
        plain = [t.to(dtype) for t in operands]
        turned = [last(t) for t in plain]
        # float64 takes its time: the first rows of a convolution, whose last lacks a neighbour, are enough
        rows = 4 if len(plain) > 1 else shape[-2]
        wide, *weights = [t.double() for t in plain]
        want = operator(wide[..., :rows, :], *weights)[..., : rows - 1, :]
        errors = [error(operator(*side)[..., : rows - 1, :], want) for side in (plain, turned)]
        a, b = interleaved([lambda: operator(*plain), lambda: operator(*turned)], seconds)
        told = (
            f"| {operator.__name__}{note} | {str(dtype)[6:]} | {list(shape)} | {a * 1e3:.1f} | {a / b:.2f} "
        )
        print(f"{told}| {errors[0]:.1e} | {errors[1]:.1e} |", flush=True)

    for shape in IMAGES:
        row(conv2d, shape)
    for shape in VIDEOS:
        row(conv3d, shape)
    row(upsample, IMAGES[-1])
    for shape in IMAGES[0], IMAGES[-1], VIDEOS[-1]:
        row(normalize, shape)
        for mean in 0, 3, 30:
            row(group_norm, shape, f", mean {mean} std", mean)


def kl(size: int) -> tuple[torch.nn.Module, Tensor]:
    """Stable Diffusion's decoder: widths 512, 512, 256, 128."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
    )
    return model, torch.randn(1, 4, size, size)


def wan(size: int) -> tuple[torch.nn.Module, Tensor]:
    """Wan 2.1's decoder: widths 384, 384, 192, 96; 2 latent frames, so 5 frames."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(), torch.randn(1, 16, 2, size, size)


def decoder(name: str, dtype: torch.dtype, size: int, seconds: float) -> None:
    model, latent = (kl if name == "kl" else wan)(size)
    model, latent = model.to(dtype).eval(), latent.to(dtype)
    turned = copy.deepcopy(model)
    for parameter in turned.parameters():
        parameter.data = last(parameter.data)
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model.decode(latent)
        turned.decode(latent)
        a, b = interleaved([lambda: model.decode(latent), lambda: turned.decode(latent)], seconds)
    work = counter.get_total_flops()
    print(f"{name} {str(dtype)[6:]} latent {list(latent.shape)}: {work / 1e9:.0f} GFLOP; ", end="")
    print(f"contiguous {a:.2f} s, channels-last {b:.2f} s: {a / b:.2f}; {work / b / 1e9:.0f} GFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["ops", "kl", "wan"], nargs="?", default="ops")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument(
        "--size", type=int, default=16, help="of the latent; an image is 8 times as wide and high"
    )
    parser.add_argument("--seconds", type=float, default=1, help="per case")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dtype = getattr(torch, options.dtype)
    if options.what == "ops":
        ops(dtype, options.seconds)
    else:
        decoder(options.what, dtype, options.size, options.seconds)


if __name__ == "__main__":
    main()
