"""A float64 run of any model: the oracle that rewritten outputs are scored against.

``model.double()`` alone is no reference: models cast to fixed dtypes inside (``x.float()``,
``.to(torch.bfloat16)``, fp8 decode, ``torch.zeros(..., dtype=torch.float32)``), keep tensors outside
of parameters and buffers, and call operators that have no float64 kernel. Here

* every floating tensor that the model owns becomes float64, fp8 and quantised weights decoded exactly;
* under :class:`Float64Mode` every floating result stays float64, whatever dtype the model asks for;
* operators without a float64 kernel (scaled and grouped matrix products) are computed by their meaning.

Integer, bool and random results are as in the original run. What cannot be referenced this way is a
model that decides by comparing rounded values (top-k routing, argmax): there float64 may decide otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

FP8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
REAL = (torch.float32, torch.bfloat16, torch.float16, *FP8)
COMPLEX = (torch.complex64, torch.complex32)
RANDOM = {
    "bernoulli", "normal", "rand", "rand_like", "randn", "randn_like", "native_dropout", "uniform",
    "bernoulli_", "normal_", "uniform_", "exponential_", "multinomial",
}  # fmt: skip

aten = torch.ops.aten


class NoReference(Exception):
    """The model cannot be run in float64; the message says why."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The double-width counterpart of a floating or complex dtype; other dtypes unchanged."""
    if dtype in REAL:
        return torch.float64
    return torch.complex128 if dtype in COMPLEX else dtype


def widen(value: Any) -> Any:
    """A plain tensor of a narrow floating dtype as float64 (exact); anything else unchanged."""
    if isinstance(value, Tensor) and wide_dtype(value.dtype) is not value.dtype:
        return value.to(wide_dtype(value.dtype))
    return value


def _scaled_mm(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    out = (a * scale_a) @ (b * scale_b)
    return out if bias is None else out + bias


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    if offs is None:
        return torch.matmul(a, b)
    if a.dim() == 2 and b.dim() == 3:
        out = a.new_zeros(a.shape[0], b.shape[2])
        start = 0
        for group, stop in enumerate(offs.tolist()):
            out[start:stop] = a[start:stop] @ b[group]
            if bias is not None:
                out[start:stop] += bias[group]
            start = stop
        return out
    raise NoReference(f"grouped product of ranks {a.dim()} and {b.dim()}")


BY_MEANING: dict[str, Callable[..., Any]] = {"_scaled_mm": _scaled_mm, "_grouped_mm": _grouped_mm}


class Float64Mode(TorchDispatchMode):
    """Keeps every floating tensor in float64 (and complex in complex128)."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1]
        if func is aten.view.dtype:  # reinterprets bits: the bits must be those of the original dtype
            if args[1].is_floating_point and wide_dtype(args[0].dtype) is args[0].dtype:
                raise NoReference("bits are reinterpreted as a floating dtype")
            return func(*args, **kwargs)
        if func.is_view:
            return func(*args, **kwargs)
        random = name in RANDOM
        mutated = set()
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                mutated.add(i if i < len(args) and not argument.kwarg_only else argument.name)

        def convert(value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return value if random else wide_dtype(value)
            return widen(value)

        args = tuple(a if i in mutated else tree_map(convert, a) for i, a in enumerate(args))
        kwargs = {k: a if k in mutated else tree_map(convert, a) for k, a in kwargs.items()}
        if name in BY_MEANING:
            return BY_MEANING[name](*args, **kwargs)
        narrow = [args[i].dtype for i in mutated if isinstance(i, int) and isinstance(args[i], Tensor)]
        if narrow and wide_dtype(narrow[0]) is not narrow[0]:  # a narrow tensor that the model does not own
            args = tuple(
                a.to(narrow[0]) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
            )
        out = func(*args, **kwargs)
        return out if mutated else tree_map(widen, out)


def _decode_quantised(value: Tensor) -> Tensor | None:
    """The exact values of a quantised tensor subclass (torchao, quanto), or None."""
    for data_name, scale_name in (("qdata", "scale"), ("_data", "_scale")):
        data, scale = getattr(value, data_name, None), getattr(value, scale_name, None)
        if not (isinstance(data, Tensor) and isinstance(scale, Tensor)):
            continue
        data, scale = data.to(torch.float64), scale.to(torch.float64)
        if scale.dim() == data.dim():
            for dim in range(data.dim()):
                scale = scale.repeat_interleave(data.shape[dim] // scale.shape[dim], dim)
        return data * scale
    return None


def _plain_double(value: Tensor) -> Tensor:
    if type(value) in (Tensor, nn.Parameter):
        return widen(value.detach())
    decoded = _decode_quantised(value.detach())
    if decoded is None:
        raise NoReference(f"weights of type {type(value).__name__}")
    return decoded


def to_float64_(model: nn.Module) -> nn.Module:
    """Turn every floating tensor that ``model`` owns into float64, in place; ties are kept."""
    seen: dict[int, tuple[Any, Any]] = {}  # the old tensor is kept, so that its id stays taken

    def double(value: Tensor) -> Tensor:
        """The float64 of a tensor, the same object each time, so that ties hold."""
        if id(value) not in seen:
            new = _plain_double(value)
            if isinstance(value, nn.Parameter):
                new = nn.Parameter(new, requires_grad=False)
            seen[id(value)] = value, new
        return seen[id(value)][1]

    def attribute(value: Any) -> Any:
        if isinstance(value, Tensor):
            return double(value)
        if type(value) in (list, tuple) and any(isinstance(v, Tensor) for v in value):
            return type(value)(attribute(v) for v in value)
        if type(value) is dict and any(isinstance(v, Tensor) for v in value.values()):
            return {k: attribute(v) for k, v in value.items()}
        for layer in getattr(value, "layers", None) or [] if not isinstance(value, nn.Module) else []:
            for name in ("keys", "values"):  # a static cache held by the model
                if isinstance(getattr(layer, name, None), Tensor):
                    setattr(layer, name, double(getattr(layer, name)))
        return value

    replacements = []
    for name, module in model.named_modules(remove_duplicate=True):
        own = [p for p in module._parameters.values() if p is not None]
        quantised = any(type(p) not in (Tensor, nn.Parameter) for p in own)
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[key] = double(parameter)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = double(buffer)
        for key, value in list(module.__dict__.items()):
            if key not in ("_parameters", "_buffers", "_modules"):
                module.__dict__[key] = attribute(value)
        if quantised and isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            plain = nn.Linear(1, 1, bias=False)  # a quantising layer would quantise again
            plain.in_features, plain.out_features = module.in_features, module.out_features
            plain.weight, plain.bias = module._parameters["weight"], module._parameters.get("bias")
            replacements.append((name, plain))
    for name, plain in replacements:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, plain)
    return model


def run_float64(model: nn.Module, args: tuple = (), kwargs: dict | None = None) -> Any:
    """Run ``model`` in float64. The model is CONVERTED IN PLACE: pass one that you can spare."""
    to_float64_(model)
    args, kwargs = tree_map(widen, (tuple(args), dict(kwargs or {})))
    default = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float64)
        stack.enter_context(torch.no_grad())
        stack.enter_context(Float64Mode())
        return model(*args, **kwargs)


def reference(model: nn.Module, args: tuple = (), kwargs: dict | None = None) -> Any:
    """The float64 output of ``model`` on the given inputs; neither is changed."""
    model, args, kwargs = copy.deepcopy((model, tuple(args), dict(kwargs or {})))
    return run_float64(model, args, kwargs)
