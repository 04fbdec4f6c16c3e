"""Implementations of each op for CUDA tensors, best first, each with what it requires.

Where no GPU is, nothing can run, and the lists answer for a dry run as on the architecture that the
kernels are tuned for. Bounds that no run has confirmed yet are marked ``modelled``: they come from the
bytes and products of each side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..guards.vocabulary import Guard, at_least, at_most, divisible, dtype_in, equal, holds
from .evidence import measured
from .library import load_cuda

Arguments = Mapping[str, Any]
Lowering = Callable[[Any, Arguments], Any]

BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16
LEAST_CAPABILITY, TUNED_FOR = 80, 90


@dataclass(frozen=True)
class CudaImplementation:
    """A way to compute an op on a GPU: a kernel of ours, or calls of the framework.

    ``requires`` gets the call's arguments by name (fake tensors and plain values). ``lower(op, arguments)``,
    for calls of the framework, writes them into the graph with the builder ``op``, from the same
    arguments as nodes, and returns the result's node; None is a kernel of ours. ``lowers`` says in words what
    is computed in lower precision at quality "high".
    """

    algorithm: str
    requires: Callable[[Arguments], Iterable[Guard]]
    lower: Lowering | None = None
    lowers: Callable[[Arguments], str] = lambda arguments: ""

    @property
    def name(self) -> str:
        """As counted at run time: "cuda:stream"."""
        return f"cuda:{self.algorithm}"

    def guards(self, arguments: Arguments) -> list[Guard]:
        """All requirements of a call with these arguments."""
        device = next(a.device for a in arguments.values() if isinstance(a, torch.Tensor))
        own = [] if self.lower else [_loaded(), at_least(capability(device), LEAST_CAPABILITY, "capability")]
        return [*own, *self.requires(arguments)]

    def lowered(self, arguments: Arguments) -> str:
        """What a call with these arguments computes in lower precision at quality "high"; "" for nothing."""
        return self.lowers(arguments)


def capability(device: torch.device) -> int:
    """Compute capability of a CUDA device as 10 · major + minor; `TUNED_FOR` where no GPU is."""
    if not torch.cuda.is_available():
        return TUNED_FOR
    major, minor = _capability(device.index if device.index is not None else torch.cuda.current_device())
    return 10 * major + minor


@functools.cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def _loaded() -> Guard:
    missing = load_cuda() if torch.cuda.is_available() else None
    return holds(missing is None, "the CUDA library is loaded", missing or "")


def modelled(guard: Guard, detail: str) -> Guard:
    """``guard`` as a requirement of cost that follows from a count of bytes and products."""
    return measured(guard, f"{detail} (modelled)")


def on_cuda(arguments: Arguments) -> bool:
    """Is the first tensor among the arguments on a GPU?"""
    tensors = (a for a in arguments.values() if isinstance(a, torch.Tensor))
    return next((t.device.type == "cuda" for t in tensors), False)


# -------------------------------------------------------------------------------------------- linear


def _linear(a: Arguments) -> Iterable[Guard]:
    yield measured(holds(False, "a kernel of ours", "left to the framework"), "cuBLASLt is near the limit")


# ---------------------------------------------------------------------------------------- fp8_linear

FP8_MOST_ROWS = 128  # fp8_most_rows of native/cuda/ops/fp8_linear.h


def _fp8_linear(a: Arguments) -> Iterable[Guard]:
    x, weight, scale = a["x"], a["weight"], a["scale"]
    yield dtype_in(x, [BF16], "x")
    yield dtype_in(weight, [torch.float8_e4m3fn, torch.float8_e5m2], "weight")
    if scale is not None:
        yield dtype_in(scale, [BF16, FP16, FP32, torch.float64], "scale")
        one = scale.dim() <= 2 and all(_is(size, 1) for size in scale.shape)
        each = scale.dim() == 2 and scale.shape[0] == weight.shape[0] and _is(scale.shape[1], 1)
        yield holds(
            one or each,
            "a scale for the tensor or for each output channel",
            f"scale of shape {list(scale.shape)} for a weight of shape {list(weight.shape)}",
        )
    yield holds(a["block"] is None, "no scale for each block", "a scale for each block")
    yield equal(weight.stride(1), 1, "the weight is row-major")
    yield divisible(weight.shape[1], 16, "input width")
    yield divisible(weight.stride(0), 16, "stride of the weight's rows")


def _is(size: Any, value: int) -> bool:
    return isinstance(size, int) and size == value


def _rows(x: torch.Tensor) -> Any:
    rows: Any = 1
    for size in x.shape[:-1]:
        rows = rows * size
    return rows


def _fp8_stream(a: Arguments) -> Iterable[Guard]:
    yield from _fp8_linear(a)
    again = (
        "the weight is read again for each 64 rows, and decoding it once for the framework's GEMM is faster"
    )
    yield modelled(at_most(_rows(a["x"]), FP8_MOST_ROWS, "rows"), again)


def _fp8_decode(a: Arguments) -> Iterable[Guard]:
    """The weight decoded and scaled in one pass, then the framework's GEMM.

    The framework's FP8 GEMM (``torch._scaled_mm``) is no other way to compute this: its x is in FP8 too.
    """
    yield from _fp8_linear(a)
    scaled = holds(a["scale"] is not None, "the weight is scaled", "no scale")
    yield modelled(scaled, "a cast and the framework's GEMM take the same passes over memory")


# ---------------------------------------------------------------------------------------------- sdpa


def _sdpa_framework(a: Arguments) -> Iterable[Guard]:
    """Attention written out by hand, as one call of the framework's fused attention."""
    query, key, value, mask = a["query"], a["key"], a["value"], a["attn_mask"]
    written_out = holds(not a["safe_softmax"], "written out by hand", "a fused call")
    yield measured(written_out, "the framework's fused attention already runs")
    yield holds(a["sinks"] is None, "no sinks", "sinks are given")
    yield holds(not a["softcap"] and not a["window"], "no cap and no window", "scores are capped or windowed")
    filled = a["mask_fill"] is not None
    yield holds(not filled, "masked by adding", f"masked scores are replaced by {a['mask_fill']}")
    yield dtype_in(query, [BF16, FP16, FP32], "query")
    for name, size in (("query length", query.shape[2]), ("key length", key.shape[2])):
        yield at_least(size, 1, name)
    width = query.shape[-1]
    fused = "the framework's fused kernels take heads of one width up to 256"
    yield measured(at_most(width, 256, "head width"), fused)
    yield measured(equal(value.shape[-1], width, "key and value heads of one width"), fused)
    if mask is not None:
        yield dtype_in(mask, [torch.bool, query.dtype], "mask")
        yield holds(not a["is_causal"], "a mask or is_causal, not both", "a mask and is_causal together")
        yield holds(mask.dim() <= 4, "the mask's rank is at most 4", f"mask of rank {mask.dim()}")


def _lower_sdpa(op: Any, a: Arguments) -> Any:
    mask = a["attn_mask"]
    if mask is not None:
        while mask.meta["val"].dim() < 4:
            mask = op.aten.unsqueeze.default(mask, 0)
    out = op.aten.scaled_dot_product_attention.default(
        a["query"],
        a["key"],
        a["value"],
        mask,
        0.0,
        a["is_causal"],
        scale=a["scale"],
        enable_gqa=a["enable_gqa"],
    )
    if mask is not None:  # softmax of a row without keys is NaN; the fused call gives zeros
        if mask.meta["val"].dtype == torch.bool:
            dead = op.aten.logical_not.default(op.aten.any.dim(mask, -1, True))
        else:
            dead = op.aten.all.dim(op.aten.eq.Scalar(mask, float("-inf")), -1, True)
        out = op.aten.masked_fill.Scalar(out, dead, float("nan"))
    if not a["token_major"]:
        return op.aten.contiguous.default(out)
    tokens = op.aten.transpose.int(out, 1, 2)
    return op.aten.transpose.int(op.aten.contiguous.default(tokens), 1, 2)


# ----------------------------------------------------------------------------- relu_linear_attention


def _tokens(a: Arguments) -> Iterable[Guard]:
    yield holds(not a["channel_major"], "a token-major result", "channel-major")
    yield from _relu_linear_attention(a)


def _channels(a: Arguments) -> Iterable[Guard]:
    yield holds(a["channel_major"], "a channel-major result", "token-major")
    yield from _relu_linear_attention(a)


def _relu_linear_attention(a: Arguments) -> Iterable[Guard]:
    query, value = a["query"], a["value"]
    turned = a["cos"] is not None
    if turned:
        own = "features of its own"
        yield holds(a["norm_query"] is None, "the normaliser has the features before they are turned", own)
    tensors = {n: a[n] for n in ("query", "key", "value", "norm_query", "norm_key") if a[n] is not None}
    angles = {n: a[n] for n in ("cos", "sin") if a[n] is not None}
    for name, tensor in {**tensors, **angles}.items():
        yield dtype_in(tensor, [BF16, FP32], name)
    yield holds(
        a["out_dtype"] in (None, BF16, FP32),
        "the result is bfloat16 or float32",
        f"the result is {a['out_dtype']}",
    )
    batch, heads, tokens, width = query.shape
    for name, size in (("batch", batch), ("tokens", tokens)):
        yield at_least(size, 1, name)
    yield at_most(batch * heads, 65535, "batch times heads")
    for name, size in (("head width", width), ("value head width", value.shape[-1])):
        yield modelled(at_most(size, 112, name), "wider heads are cut into blocks, and read again for each")
    slow = "element by element, memory is read at a fraction of its speed"
    for name, tensor in tensors.items():
        yield modelled(_read_at_once(tensor, name), slow)
    for name in ("query", "key") if turned else ():
        yield modelled(equal(a[name].stride(-1), 1, f"stride of the {name}'s pairs"), slow)


def _rounds_keys(a: Arguments) -> str:
    wide = FP32 in (a["key"].dtype, a["value"].dtype)
    return "keys and values are rounded to bfloat16 for their product" if wide else ""


def _read_at_once(tensor: torch.Tensor, name: str) -> Guard:
    """Neighbours in memory are loaded 16 bytes at once: along the width, or along the tokens."""
    together = 16 // tensor.element_size()
    strides = [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if not _is(size, 1)]
    rest = [s for s in strides if not _is(s, 1)]
    whole = len(rest) < len(strides) and all(not isinstance(s, int) or s % together == 0 for s in rest)
    return holds(
        whole, f"{name} is loaded 16 bytes at once", f"{name} has strides {[str(s) for s in tensor.stride()]}"
    )


CUDA_IMPLEMENTATIONS: dict[str, tuple[CudaImplementation, ...]] = {
    "linear": (CudaImplementation("framework", _linear),),
    "fp8_linear": (CudaImplementation("stream", _fp8_stream), CudaImplementation("decode", _fp8_decode)),
    "sdpa": (CudaImplementation("framework", _sdpa_framework, _lower_sdpa),),
    "relu_linear_attention": (
        CudaImplementation("tokens", _tokens, lowers=_rounds_keys),
        CudaImplementation("channels", _channels, lowers=_rounds_keys),
    ),
}
