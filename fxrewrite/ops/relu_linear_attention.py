"""``fxrewrite::relu_linear_attention``: attention with a ReLU feature map, linear in the length.

    out_i = Σ_j φ(k_j)·q̂_i v_j / (Σ_j φ'(k_j)·q̂'_i + eps),   φ = ReLU

as in EfficientViT (Cai et al., 2023, eq. 2-3), used by SANA (Xie et al., 2024) and, with rotary
embeddings (Su et al., 2021, eq. 34) on the numerator's features only, by SANA-Video.
"""

from __future__ import annotations

import torch

from .library import define


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x`` [..., D] with its pairs (2i, 2i + 1) turned; ``cos`` and ``sin`` broadcast to [..., D / 2]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    norm_query: torch.Tensor | None = None,
    norm_key: torch.Tensor | None = None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    *,
    eps: float,
    floor: float | None = None,
    relu: bool = True,
    out_dtype: torch.dtype | None = None,
    channel_major: bool = False,
) -> torch.Tensor:
    """``query``, ``key`` [B, H, N, D], ``value`` [B, H, N, Dv], any strides: result [B, H, N, Dv].

    * ``norm_query``, ``norm_key`` [B, H, N, D]: features of the normaliser where they are not those
      of the numerator (both or neither).
    * ``cos``, ``sin``, broadcasting to [B, H, N, D / 2] (both or neither): the numerator's features are
      turned by a rotary embedding of neighbours, and rounded to the dtypes of ``query`` and ``key``.
      The normaliser's are not.
    * ``relu``: apply ReLU to ``query`` and ``key`` (never to the ``norm_`` tensors); False means
      that they are features already.
    * ``eps`` is added to the normaliser, after it was raised to ``floor`` where it is less.
    * Products and sums are in at least float32; ``out_dtype`` (default: that of ``value``) is the
      result's.
    * ``channel_major``: memory order of the result, [B, H, Dv, N] (True) or [B, H, N, Dv] (False).
    """
    for names, (one, two) in {
        "norm_query and norm_key": (norm_query, norm_key),
        "cos and sin": (cos, sin),
    }.items():
        if (one is None) != (two is None):
            raise ValueError(f"relu_linear_attention: {names} go together; one of them is None")
    wide = torch.promote_types(value.dtype, torch.float32)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    if relu:
        q, k = q.relu(), k.relu()
    norm_q = q if norm_query is None else norm_query.to(wide)
    norm_k = k if norm_key is None else norm_key.to(wide)
    if cos is not None and sin is not None:
        turn = cos.to(wide), sin.to(wide)
        q, k = rotated(q, *turn).to(query.dtype).to(wide), rotated(k, *turn).to(key.dtype).to(wide)
    numerator = q @ (k.mT @ v)
    normaliser = norm_q @ norm_k.sum(dim=-2, keepdim=True).mT
    if floor is not None:
        normaliser = normaliser.clamp_min(floor)
    out = (numerator / (normaliser + eps)).to(out_dtype or value.dtype)
    return out.mT.contiguous().mT if channel_major else out.contiguous()


def fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    norm_query: torch.Tensor | None = None,
    norm_key: torch.Tensor | None = None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    *,
    eps: float,
    floor: float | None = None,
    relu: bool = True,
    out_dtype: torch.dtype | None = None,
    channel_major: bool = False,
) -> torch.Tensor:
    batch, heads, tokens, _ = query.shape
    width = value.shape[-1]
    dtype = out_dtype or value.dtype
    if channel_major:
        return query.new_empty(batch, heads, width, tokens, dtype=dtype).mT
    return query.new_empty(batch, heads, tokens, width, dtype=dtype)


op = define(
    "relu_linear_attention(Tensor query, Tensor key, Tensor value, Tensor? norm_query=None,"
    " Tensor? norm_key=None, Tensor? cos=None, Tensor? sin=None, *, float eps, float? floor=None,"
    " bool relu=True, ScalarType? out_dtype=None, bool channel_major=False) -> Tensor",
    reference=reference,
    fake=fake,
)
