"""Tensors of one value in many layouts, for tests of kernels: what a view can do to strides."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

LAYOUTS = ("contiguous", "transposed", "row gap", "inner gap", "offset")


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """``tensor`` [..., A, B] with other strides or another address. What lies in the gaps is NaN."""
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    *batch, rows, columns = tensor.shape
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "row gap":
        frame = _nan(*batch, rows, columns + 3, like=tensor)
        view = frame[..., 1 : columns + 1]
    elif layout == "inner gap":
        frame = _nan(*batch, rows, 2 * columns + 1, like=tensor)
        view = frame[..., 1::2]
    else:  # an address that is a multiple of the element's size only
        count = tensor.numel()
        view = _nan(count + 2, like=tensor)[1 : count + 1].view(tensor.shape)
    view.copy_(tensor)
    return view


def _nan(*shape: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full(shape, float("nan")).to(like.dtype)


layouts = st.sampled_from(LAYOUTS)
# The edges of lanes, panels, tiles and pairs, and what lies between.
row_counts = st.one_of(st.integers(0, 14), st.sampled_from([31, 32, 33, 37, 65]))
column_counts = st.one_of(st.integers(0, 18), st.sampled_from([31, 48, 63, 64, 65, 112, 130]))
depths = st.one_of(st.integers(0, 6), st.sampled_from([15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 200]))
