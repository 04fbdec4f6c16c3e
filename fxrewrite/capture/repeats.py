"""Repeated blocks: Dynamo traces one of each kind, checks that the others are alike, and copies it.

Such a block is a nested compile region (``torch.compiler.nested_compile_region``): the graph calls its
body once for each block, and the capture writes the bodies out again.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

REGION = torch.ops.higher_order.invoke_subgraph

_AT_LEAST = 3  # fewer are hardly worth it: often the first differs from the second, in a missing residual
_KINDS = 4  # of so many unlike blocks of a class are traces kept; one more, and Dynamo raises


@contextlib.contextmanager
def traced_once(model: nn.Module) -> Iterator[bool]:
    """While active, blocks of ``model`` that are repeated are regions; gives whether there are any.

    Blocks are modules with modules inside, of the same class and with weights of the same shapes, in one
    list. They belong to a class of their own then: use it on copies.
    """
    regions: dict[type[nn.Module], type[nn.Module]] = {}
    marked: list[tuple[nn.Module, type[nn.Module]]] = []
    try:
        for block in list(dict.fromkeys(repeated_blocks(model))) if _can_copy() else ():
            kind = type(block)
            if kind not in regions:
                regions[kind] = _region(kind)
            block.__class__ = regions[kind]
            marked.append((block, kind))
        yield bool(marked)
    finally:
        for block, kind in marked:
            block.__class__ = kind


def _can_copy() -> bool:
    """Does this torch copy a region's trace? Before, it traced each anew."""
    return "max_reuse_entries" in inspect.signature(torch.compiler.nested_compile_region).parameters


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost repeated blocks inside of ``module``."""
    kinds = list(map(block_kind, module.children())) if isinstance(module, nn.ModuleList) else []
    counts = Counter(kinds)
    for index, child in enumerate(module.children()):
        if kinds and counts[kinds[index]] >= _AT_LEAST and _is_plain(child):
            yield child
        else:
            yield from repeated_blocks(child)


def block_kind(block: nn.Module) -> Any:
    """What blocks that may have the same trace share."""
    return type(block), tuple((name, weight.shape) for name, weight in block.named_parameters())


def _is_plain(block: nn.Module) -> bool:
    """May its class have a subclass without anyone noticing, whose forward is what runs?"""
    return type(type(block)) is type and "forward" not in block.__dict__ and any(block.children())


class _Unannounced(nn.Module):
    """Base of a class whose other bases are not told of it."""

    def __init_subclass__(cls) -> None:
        pass


def _region(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``kind`` whose forward is a region of its own."""
    original = kind.forward

    def body(self: nn.Module, form: str, *leaves: Any) -> Any:
        args, kwargs = _arguments(form, leaves)
        return _separate(original(self, *args, **kwargs))

    # Dynamo tells regions apart by their code, and equal code is the same
    body.__code__ = body.__code__.replace(co_name=f"{kind.__qualname__}_{id(kind)}")
    region = torch.compiler.nested_compile_region(body, max_reuse_entries=_KINDS)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return region(self, "", *args)
        form, leaves = _leaves(args, kwargs)
        return region(self, form, *leaves)

    return type(kind.__name__, (_Unannounced, kind), {"forward": forward, "__module__": kind.__module__})


# Where the arguments of a region are tensors and constants, by position, Dynamo compares those of two calls
# at once. Otherwise it traces torch's pytree at every call.


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
    """The arguments by position, tuples taken apart, and what form they had.

    >>> _leaves((x, (y, z)), {"scale": 2})
    (" | 2|scale ", [x, y, z, 2])
    """
    form: list[str] = []
    leaves: list[Any] = []
    for name, value in [*[("", arg) for arg in args], *kwargs.items()]:
        if type(value) is tuple:
            form.append(f"{name} {len(value)}")
            leaves.extend(value)
        else:
            form.append(f"{name} ")
            leaves.append(value)
    return "|".join(form), leaves


def _arguments(form: str, leaves: tuple[Any, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
    """What ``_leaves`` was given."""
    if not form:  # there were positional ones only
        return leaves, {}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    at = 0
    for part in form.split("|"):
        name, count = part.split(" ")
        if count:
            value: Any = leaves[at : at + int(count)]
            at += int(count)
        else:
            value = leaves[at]
            at += 1
        if name:
            kwargs[name] = value
        else:
            args.append(value)
    return args, kwargs


def _separate(result: Any) -> Any:
    """``result`` with tensors that are no views of others: Dynamo wants that of a region."""
    if isinstance(result, torch.Tensor):
        return OWN_STORAGE(result)
    if type(result) is tuple:
        return tuple(_separate(part) for part in result)
    return result


# Stands for its argument; the capture takes it out again. It never runs on a real tensor.
torch.library.define("fxrewrite_capture::own_storage", "(Tensor value) -> Tensor")
OWN_STORAGE = torch.ops.fxrewrite_capture.own_storage.default


def _own_storage(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


torch.library.register_fake("fxrewrite_capture::own_storage", _own_storage)

Stack = dict[str, tuple[str, Any]]


def relabelled(stack: Stack, traced: Stack, called: Stack) -> Stack:
    """``stack``, of a node of a body, as that of the same node in the block that is called.

    >>> relabelled({"1": ("b.0", A), "2": ("b.0.c", C)}, {"1": ("b.0", A)}, {"7": ("b.3", A)})
    {"7": ("b.3", A), "2": ("b.3.c", C)}
    """
    if traced == called or not traced or not called:
        return stack
    old, new = list(traced.values())[-1][0], list(called.values())[-1][0]
    inner = {
        key: (new + path.removeprefix(old) if _is_inside(path, old) else path, kind)
        for key, (path, kind) in stack.items()
        if key not in traced
    }
    return {**called, **inner}


def _is_inside(path: str, of: str) -> bool:
    return path.startswith(of) and path[len(of) : len(of) + 1] in ("", ".", "[")
