"""Repeated blocks of a model run once while inputs are tried: the rest give results of the same form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from ..capture import block_kind, repeated_blocks


@contextlib.contextmanager
def blocks_run_once(model: nn.Module) -> Iterator[None]:
    """While active, a repeated block of ``model`` whose arguments are in shape and value like those of
    another of its kind returns what that one did. For a model on the meta device, where tensors have no more
    than a shape.
    """
    results: dict[Hashable, Any] = {}
    blocks = list(dict.fromkeys(repeated_blocks(model)))
    for block in blocks:
        block.forward = _once(block_kind(block), block.forward, results)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _once(kind: Hashable, forward: Callable[..., Any], results: dict[Hashable, Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):  # a cache, say
            return forward(*args, **kwargs)
        key = kind, str(form), tuple(map(_form, leaves))
        if key not in results:
            results[key] = forward(*args, **kwargs)
        return results[key]

    return run


_PLAIN = (bool, int, float, str, type(None))


def _form(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return type(value), value
