"""Layers whose forward cannot be captured, written out as what they compute.

A layer that decodes its weight for good before its first call, or by a kernel that this machine lacks, is
no FP8 site to anybody. In a rewritten module it decodes what it stores at each call, in plain PyTorch: that
is captured, and becomes an operator that reads the stored bytes. Libraries are known by name, and need not
be installed.

torch's own encoder computes on nested tensors outside of a capture only, and differs there where is padding.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .casting import FP8


def write_out_layers(model: nn.Module) -> list[str]:
    """Do so in ``model``, in place, parameters and buffers untouched. Returns what a report should note."""
    notes: list[str] = []
    blocks = [m for m in model.modules() if _forward_of(m) == _FINE_GRAINED and _is_fp8(m)]
    for module in blocks:
        _set_forward(module, _block_scaled)
    if blocks:
        notes.append(f"{len(blocks)} layers {type(blocks[0]).__name__}: activations are not quantised here")
    for module in model.modules():
        notes += _keep_compressed(module)
        if _class_forward(module) is nn.TransformerEncoder.forward:
            _set_forward(module, _zero_padded)
    return notes


def take_back_layers(model: nn.Module) -> None:
    """Undo ``write_out_layers``."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, _WrittenOut):
            del module.__dict__["forward"]
            if forward.replaced is not None:
                module.__dict__["forward"] = forward.replaced
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, _Idle):
                module._forward_pre_hooks[key] = hook.hook


class _WrittenOut(functools.partial[Any]):
    """The forward of a layer that is written out; ``replaced`` is the one that the instance had."""

    replaced: Any = None


class _Idle:
    """A forward pre-hook that is left out for now."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None


def _set_forward(module: nn.Module, forward: Callable[..., Any], *args: Any) -> None:
    written = _WrittenOut(forward, module, *args)
    written.replaced = module.__dict__.get("forward")
    module.__dict__["forward"] = written


def _forward_of(module: nn.Module) -> tuple[str, str]:
    """Module and name of the function that is the forward of the class."""
    forward = _class_forward(module)
    return getattr(forward, "__module__", ""), getattr(forward, "__qualname__", "")


def _class_forward(module: nn.Module) -> Any:
    """The forward of the class, as it stands there: a ScriptModule's class cannot be asked for its own."""
    return inspect.getattr_static(type(module), "forward", None)


def _is_fp8(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dtype in FP8


# ------------------------------------------------------------------------------------------------- torch


def _zero_padded(
    encoder: Any,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """``nn.TransformerEncoder``: where it would nest tensors, what is padded leaves the layers as 0."""
    padding = src_key_padding_mask
    if mask is not None or padding is None or is_causal or not _nests(encoder, src):
        result: torch.Tensor = type(encoder).forward(encoder, src, mask, padding, is_causal)
        return result
    x = src
    for layer in encoder.layers:
        x = layer(x, src_key_padding_mask=padding)
    kept = padding.logical_not()  # of an added mask, too
    to_the_left = (kept[:, 1:] <= kept[:, :-1]).all()  # it nests nothing else
    x = x.masked_fill((~kept & to_the_left)[:, :, None], 0.0)
    return x if encoder.norm is None else encoder.norm(x)


def _nests(encoder: Any, src: torch.Tensor) -> bool:
    """Would ``encoder`` take nested tensors for left-aligned ``src``, if it were not captured?"""
    if not torch.compiler.is_compiling() or not torch.backends.mha.get_fastpath_enabled():
        return False
    if not getattr(encoder, "use_nested_tensor", False) or not getattr(encoder, "mask_check", True):
        return False
    first = encoder.layers[0]
    if first.training or src.dim() != 3 or src.is_nested or torch.is_autocast_enabled():
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in (src, *first.parameters())))


# ------------------------------------------------------------------------------------------ transformers

_FINE_GRAINED = "transformers.integrations.finegrained_fp8", "FP8Linear.forward"


def _block_scaled(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """transformers' ``FP8Linear``: ``weight_scale_inv`` multiplies, one element for each block of
    ``block_size``, or one in all. Its own kernels are those of GPUs, and round the activations to FP8."""
    weight, scale = layer.weight, layer.weight_scale_inv
    if input.device.type != "cpu" or weight.dtype not in FP8:
        result: torch.Tensor = type(layer).forward(layer, input)
        return result
    scale = scale.to(torch.float32)
    if layer.block_size is not None:
        (n, k), (rows, columns) = weight.shape, layer.block_size
        scale = scale.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
    return F.linear(input, (weight.to(torch.float32) * scale).to(input.dtype), layer.bias)


# ------------------------------------------------------------------------------------ compressed-tensors


def _keep_compressed(root: Any) -> list[str]:
    """compressed-tensors decodes all layers below ``root`` in a hook before its first forward: leave it out
    where each of them can do so at each call."""
    hooks = [key for key, hook in root._forward_pre_hooks.items() if _decompresses(hook)]
    if not hooks:
        return []
    layers = [m for m in root.modules() if getattr(m, "quantization_scheme", None) is not None]
    others = [m for m in layers if not _is_weight_only(m)]
    if others:
        return [
            f"compressed-tensors decodes all weights before the first call: {len(others)} of {len(layers)}"
            " layers are not FP8 weights of a linear layer with activations as they are (W8A16)"
        ]
    try:
        compressors = [_compressor(layer) for layer in layers]
    except (ImportError, AttributeError, KeyError) as error:
        return [
            "compressed-tensors decodes all weights before the first call, and how is not found in this"
            f" version: {type(error).__name__}: {error}"
        ]
    for key in hooks:
        root._forward_pre_hooks[key] = _Idle(root._forward_pre_hooks[key])
    for layer, compressor in zip(layers, compressors, strict=True):
        _set_forward(layer, _decompressed, compressor)
    return []


def _decompresses(hook: Any) -> bool:
    module, name = getattr(hook, "__module__", None) or "", getattr(hook, "__name__", "")
    return module.startswith("compressed_tensors.") and name == "ct_decompress_hook"


def _is_weight_only(layer: Any) -> bool:
    scheme = layer.quantization_scheme
    plain = scheme.input_activations is None and scheme.output_activations is None
    return plain and _is_fp8(layer) and type(layer).forward is nn.Linear.forward


def _compressor(layer: Any) -> Any:
    base = importlib.import_module("compressed_tensors.compressors.base")
    scheme = layer.quantization_scheme
    name = scheme.format
    if name is None:
        formats = importlib.import_module("compressed_tensors.compressors.format")
        name = formats.infer_module_format(type(layer), scheme)
    return base.BaseCompressor.get_value_from_registry(getattr(name, "value", name))


def _decompressed(layer: Any, compressor: Any, input: torch.Tensor) -> torch.Tensor:
    """The linear layer over what the library decodes; a layer that it has decoded already is as it is."""
    if layer.weight.dtype not in FP8:
        return F.linear(input, layer.weight, layer.bias)
    stored = dict(_tensors(layer))
    decoded = compressor.decompress(stored, layer.quantization_scheme)["weight"]
    return F.linear(input, decoded, layer.bias)


def _tensors(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for kept in (layer._parameters, layer._buffers):
        for name, tensor in kept.items():
            if tensor is not None:
                yield name, tensor


__all__ = ["take_back_layers", "write_out_layers"]
