"""The CPU implementations of each op, best first, each with what it requires. The list is the cost model.

The kernels check the same requirements again at run time: a list promises speed, never safety. A
requirement with evidence "measured" is one of cost: the kernel would be right, but not faster than
what the framework does. The figures behind them come from ``tests/benchmarks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..guards.vocabulary import Guard, at_least, at_most, device_is, divisible, dtype_in, equal, holds
from .evidence import measured
from .isa import active_isa, detected_isa, multiplies_float16

Arguments = Mapping[str, Any]
BF16_LEVELS = ("amx_bf16", "avx512_bf16")  # with instructions for products of bf16

BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16


def _nothing(arguments: Arguments, level: str) -> str:
    return ""


@dataclass(frozen=True)
class Implementation:
    """A kernel of an op: its algorithm, the ISA levels at which it is listed, and what it requires.

    ``requires`` gets the call's arguments by name (fake tensors and plain values) and the ISA level. So does
    ``lowers``, which says in words what the kernel computes in lower precision at quality "high".
    """

    algorithm: str
    levels: tuple[str, ...]
    requires: Callable[[Arguments, str], Iterable[Guard]]
    lowers: Callable[[Arguments, str], str] = _nothing

    @property
    def name(self) -> str:
        """As counted at run time: "avx512_bf16:dot"."""
        return f"{active_isa()}:{self.algorithm}"

    def guards(self, arguments: Arguments) -> list[Guard]:
        """All requirements of a call with these arguments."""
        level = active_isa()
        pays = f"{self.algorithm} is faster than the framework at {level}"
        listed = holds(level in self.levels, pays, f"kernels of level {level}")
        first = measured(listed, f"faster than the framework from {self.levels[-1]} on")
        return [first, *self.requires(arguments, level)]

    def lowered(self, arguments: Arguments) -> str:
        """What a call with these arguments computes in lower precision at quality "high"; "" for nothing."""
        return self.lowers(arguments, active_isa())


# -------------------------------------------------------------------------------------------- linear


def _rows(x: torch.Tensor) -> Any:
    """How many rows ``x`` [..., K] has; a tensor of rank 1 is one."""
    rows: Any = 1
    for size in x.shape[:-1]:
        rows = rows * size
    return rows


def _uncapped(level: str) -> Guard:
    """FXREWRITE_ISA caps our kernels, not the framework's."""
    own = holds(level == detected_isa(), f"{level} is this machine's best", f"capped to {level}")
    return measured(own, "the framework's kernels are not")


def _linear(a: Arguments, level: str) -> Iterable[Guard]:
    x, weight = a["x"], a["weight"]
    yield device_is(x, "cpu", "x")
    yield dtype_in(x, [BF16, FP16, FP32], "x")
    if level not in BF16_LEVELS or level != detected_isa():
        yield _uncapped(level)
    if level not in BF16_LEVELS:
        half = dtype_in(x, [BF16] if level == "portable" else [BF16, FP16], "x")
        yield measured(half, f"the framework's GEMM of other types is as fast at level {level}")
        if x.dtype == FP16:
            rows = at_least(_rows(x), 16, "rows")
            yield measured(rows, f"the framework's dot products of float16 are faster at level {level}")
    elif x.dtype == BF16 and not _at_most(weight.shape[1:], 2560):  # an epilogue does not change that
        rows = _rows(x)
        many = isinstance(rows, int) and rows >= 1024 and _at_most(weight.shape[1:], 4096)
        if not many:
            faster = at_most(rows, 384 if level == "avx512_bf16" else 32, "rows")
            yield measured(faster, "with deep weights the framework's GEMM is as fast")
    if x.dtype == FP16:
        yield from _linear_in_float16(a, level)
    if x.dtype == FP32:  # BLAS sums the few outputs of a narrow layer in another way
        width = weight.shape[0]
        wide = holds(isinstance(width, int), "output width is fixed", f"output width {width}")
        yield at_least(width, 16, "output width") if isinstance(width, int) else wide


def _linear_in_float16(a: Arguments, level: str) -> Iterable[Guard]:
    follows = a["activation"] or a["multiply"] is not None or a["residual"] is not None
    plain = "between steps, values beyond 65504 are infinite; the kernel's are not"
    yield holds(not follows, "a float16 layer without an epilogue", plain)
    slow = holds(
        not multiplies_float16(), "no instructions for float16", "a machine with instructions for float16"
    )
    yield measured(slow, "the framework's float16 GEMM uses them")


def _at_most(sizes: Iterable[Any], bound: int) -> bool:
    return all(isinstance(size, int) and size <= bound for size in sizes)


def _dot(a: Arguments, level: str) -> Iterable[Guard]:
    """One stream over the rows of the weight."""
    yield from _linear(a, level)
    yield from _row_by_row(a, level)
    # takes_dots of native/cpu/ops/linear_driver.inl.h
    if (level == "avx512_bf16" and a["x"].dtype != FP16) or (level == "amx_bf16" and a["x"].dtype == FP32):
        yield measured(at_most(_rows(a["x"]), 6, "rows"), "an interleaved panel is faster")


def _most_dot_rows(weight: torch.Tensor) -> int:
    """most_dot_rows of native/cpu/ops/linear_driver.inl.h, for the levels with BF16 instructions."""
    k = weight.shape[1]
    return min(max(k // 20, 4), 32) if isinstance(k, int) else 4


def _linear_lowers(a: Arguments, level: str) -> str:
    """Few rows read the weight at memory's speed as it is."""
    rows = _rows(a["x"])
    if a["x"].dtype != FP32 or level not in BF16_LEVELS or _at_most([rows], _most_dot_rows(a["weight"])):
        return ""
    return "x and weight are rounded to bfloat16"


def _row_by_row(a: Arguments, level: str) -> Iterable[Guard]:
    """What the dot form needs of a linear of either kind."""
    most = _most_dot_rows(a["weight"])
    yield equal(a["weight"].stride(1), 1, "the weight is row-major")
    if level == "amx_bf16" and a["x"].dtype == BF16:
        most = 4  # sixteen rows cost on tiles what one does
    if a["weight"].dtype == FP16:
        most = min(most, 12)  # each pass over the weight decodes it anew
    yield at_most(_rows(a["x"]), most, "rows")


# ---------------------------------------------------------------------------------------- fp8_linear


FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def _fp8_linear(a: Arguments, level: str) -> Iterable[Guard]:
    x, weight, scale = a["x"], a["weight"], a["scale"]
    yield device_is(x, "cpu", "x")
    yield dtype_in(x, [BF16, FP16, FP32], "x")
    yield dtype_in(weight, FP8, "weight")
    if scale is not None:
        yield dtype_in(scale, [BF16, FP16, FP32, torch.float64], "scale")
        yield from _fits(scale, weight, a["block"])
    if level not in BF16_LEVELS:
        rows = at_most(_rows(x), 16 if level == "portable" else 64, "rows")
        yield measured(rows, f"decoding once and the framework's GEMM are as fast at level {level}")


def _fits(scale: torch.Tensor, weight: torch.Tensor, block: Sequence[int] | None) -> Iterable[Guard]:
    """The scale broadcasts to the weight, or is a grid of its blocks."""
    if block is None:
        sizes = [1] * (2 - scale.dim()) + list(scale.shape)
        fits = len(sizes) == 2 and all(_is_one(s) or s == w for s, w in zip(sizes, weight.shape, strict=True))
        of_what = ""
    else:
        fits = list(scale.shape) == [-(-w // b) for w, b in zip(weight.shape, block, strict=True)]
        of_what = f" in blocks of {' x '.join(map(str, block))}"
    shapes = f"scale of shape {list(scale.shape)} for a weight of shape {list(weight.shape)}{of_what}"
    yield holds(fits, "the scale fits the weight", shapes)
    small = scale.dtype == FP32 or scale.numel() <= max(4096, weight.numel() // 16)
    yield holds(small, "a scale for 16 elements of the weight or more", f"{shapes}, not in float32")


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _fp8_dot(a: Arguments, level: str) -> Iterable[Guard]:
    """One stream over the rows of the weight, a byte an element."""
    yield from _fp8_linear(a, level)
    yield from _row_by_row(a, level)
    if level == "avx512_bf16" and a["x"].dtype == BF16 and _takes_rows_of_codes(a):
        filled = holds(False, "rows that do not fill vectors of 16", f"rows = {_rows(a['x'])}")
        yield measured(filled, "the weight is decoded beside the products")


def _takes_rows_of_codes(a: Arguments) -> bool:
    """takes_rows_of_codes of native/cpu/ops/fp8_linear.inl.h, where the sizes are fixed."""
    rows, k, scale = _rows(a["x"]), a["weight"].shape[1], a["scale"]
    if not isinstance(rows, int) or not isinstance(k, int):
        return False
    by_rows = scale is None or scale.dim() == 0 or _is_one(scale.shape[-1])
    padding = -rows % 16
    return by_rows and padding <= rows // 8 and 2 * k * (rows + padding) <= 3 << 20


# ---------------------------------------------------------------------------------------------- sdpa


def _sdpa(a: Arguments) -> Iterable[Guard]:
    query, key, mask = a["query"], a["key"], a["attn_mask"]
    fused = _is_fused(a)
    yield device_is(query, "cpu", "query")
    yield dtype_in(query, [BF16, FP16, FP32], "query")
    for name, size in (
        ("batch", query.shape[0]),
        ("query length", query.shape[2]),
        ("key length", key.shape[2]),
    ):
        yield at_least(size, 1, name)
    if query.dtype == FP16:
        yield holds(
            not _is_written_out(a),
            "float16 scores in a fused call",
            "written out, scores beyond 65504 are infinite; the kernel's are not",
        )
    if a["enable_gqa"] and isinstance(key.shape[1], int):
        yield divisible(query.shape[1], key.shape[1], "heads")
    if a["sinks"] is not None:
        yield dtype_in(a["sinks"], [BF16, FP16, FP32], "sinks")
    if mask is not None:
        dtypes = {torch.bool, FP32, query.dtype} if fused else {torch.bool, FP32, BF16, FP16}
        yield dtype_in(mask, sorted(dtypes, key=str), "mask")
        yield holds(mask.dim() <= 4, "the mask's rank is at most 4", f"mask of rank {mask.dim()}")
        yield holds(
            mask.dim() >= 2 or not fused, "the mask's rank is at least 2", f"mask of rank {mask.dim()}"
        )
        both = fused and a["is_causal"]
        yield holds(not both, "a mask or is_causal, not both", "a mask and is_causal together")


def _is_written_out(a: Arguments) -> bool:
    """Is the meaning that of the formula written out, and not that of the framework's fused call?"""
    more = a["softcap"] or a["sinks"] is not None
    return not a["safe_softmax"] or a["mask_fill"] is not None or bool(more)


def _is_fused(a: Arguments) -> bool:
    """Is it the framework's fused call, with its own idea of a mask?"""
    return not _is_written_out(a) and not a["window"]


def _sdpa_stream(a: Arguments, level: str) -> Iterable[Guard]:
    yield from _sdpa(a)
    query, key, value = a["query"], a["key"], a["value"]
    yield at_most(_stream_rows(a), 8, "query rows of a key head")
    yield equal(key.stride(-1), 1, "the key's last dim is contiguous")
    yield equal(value.stride(-1), 1, "the value's last dim is contiguous")
    if level in BF16_LEVELS:  # packing_pays of native/cpu/ops/sdpa_stream.inl.h
        dim, rows = (32, 4) if query.dtype == BF16 else (16, 6)
        if _at_most([query.shape[3]], dim):
            short = at_most(query.shape[2], rows - 1, "query length")
            yield measured(short, f"keys of at most {dim} numbers are packed first")
    else:
        yield from _sdpa_stream_pays(a, level)


def _sdpa_stream_pays(a: Arguments, level: str) -> Iterable[Guard]:
    """Without BF16 instructions: each row converts the keys, and parts of vectors are read byte by byte."""
    query, key, value = a["query"], a["key"], a["value"]
    faster = f"the framework is faster at level {level}"
    if query.dtype != FP16:
        lanes = 16 if level == "avx512" else 8
        for name, size in (("head size", query.shape[3]), ("value size", value.shape[3])):
            yield measured(divisible(size, lanes, name), faster)
    if _is_fused(a):
        yield measured(at_most(query.shape[2], 2 if query.dtype == BF16 else 4, "query length"), faster)
        if query.dtype == FP32:
            yield measured(at_least(query.shape[3], 32, "head size"), faster)
            if isinstance(key.shape[2], int):
                yield measured(at_least(key.shape[2], 16, "key length"), faster)


def _sdpa_blocks(a: Arguments, level: str) -> Iterable[Guard]:
    yield from _sdpa(a)
    if level in BF16_LEVELS:
        return
    if level == "avx2":
        half = dtype_in(a["query"], [FP16], "query")
        yield measured(half, "the framework's flash attention is faster at level avx2")
    elif level == "avx512" and a["query"].dtype != FP16:
        written_out = holds(not _is_fused(a), "written out by hand", "a fused call")
        yield measured(written_out, "the framework's flash attention is as fast without BF16 instructions")
    if _is_one(a["key"].stride(-1)) and _is_one(a["value"].stride(-1)):
        yield measured(at_least(_stream_rows(a), 9, "query rows of a key head"), "fewer run as a stream")


def _stream_rows(a: Arguments) -> Any:
    query = a["query"]
    group = query.shape[1] // a["key"].shape[1] if a["enable_gqa"] else 1
    return group * query.shape[2]


# ----------------------------------------------------------------------------- relu_linear_attention


def _relu_linear_attention_lowers(a: Arguments, level: str) -> str:
    if level not in BF16_LEVELS or a["key"].dtype == a["value"].dtype == BF16:
        return ""
    return "key and value are rounded to bfloat16"


def _tokens(a: Arguments, level: str) -> Iterable[Guard]:
    yield holds(not a["channel_major"], "a token-major result", "channel-major")
    yield from _relu_linear_attention(a, level)


def _channels(a: Arguments, level: str) -> Iterable[Guard]:
    yield holds(a["channel_major"], "a channel-major result", "token-major")
    yield from _relu_linear_attention(a, level)


def _relu_linear_attention(a: Arguments, level: str) -> Iterable[Guard]:
    query = a["query"]
    names = ("query", "key", "value", "norm_query", "norm_key", "cos", "sin")
    tensors = {n: a[n] for n in names if a[n] is not None}
    yield device_is(query, "cpu", "query")
    for name, tensor in tensors.items():
        yield dtype_in(tensor, [BF16, FP32], name)
    yield holds(
        a["out_dtype"] in (None, BF16, FP32),
        "the result is bfloat16 or float32",
        f"the result is {a['out_dtype']}",
    )
    for name, size in (("batch", query.shape[0]), ("tokens", query.shape[2])):
        yield at_least(size, 1, name)
    separate = a["norm_query"] is not None
    if level not in BF16_LEVELS:
        slow = separate and (level == "avx2" or query.dtype == FP32)
        normaliser = holds(not slow, "the normaliser has the numerator's features", "a normaliser of its own")
        yield measured(normaliser, f"the framework's products are as fast at level {level}")


LEVELS = ("amx_bf16", "avx512_bf16", "avx512", "avx2", "portable")

# At level amx_bf16 products of bf16 matrices run on tiles: in "panel", in "blocks", and the first product
# of "tokens" and "channels". "dot", "stream" and everything in fp32 are the kernels of avx512_bf16. What
# pays was measured at that level and is taken over: no machine with AMX was at hand.
IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "linear": (
        Implementation("dot", LEVELS, _dot, _linear_lowers),
        Implementation("panel", LEVELS, _linear, _linear_lowers),
    ),
    "fp8_linear": (Implementation("dot", LEVELS, _fp8_dot), Implementation("panel", LEVELS, _fp8_linear)),
    "sdpa": (
        Implementation("stream", LEVELS[:4], _sdpa_stream),
        Implementation("blocks", LEVELS[:4], _sdpa_blocks),
    ),
    "relu_linear_attention": (
        Implementation("tokens", LEVELS[:4], _tokens, _relu_linear_attention_lowers),
        Implementation("channels", LEVELS[:4], _channels, _relu_linear_attention_lowers),
    ),
}
