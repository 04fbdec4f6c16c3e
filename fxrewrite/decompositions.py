"""Fused operators of torch that hide sites, written out as the calls they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """``torch._transformer_encoder_layer_fwd``: ``src`` [B, L, embed_dim], result alike.

    The meaning is that of `torch.nn.TransformerEncoderLayer` in evaluation, batch first, except
    that the operator masks where ``mask`` is not 0, whatever its dtype: [B, L] of keys (``mask_type``
    1) or [B, H, L, L] (2). A nested tensor stays with the operator.
    """
    if src.is_nested or (mask is not None and mask_type not in (1, 2)):
        return NotImplemented
    if mask is not None and mask_type == 1:
        mask = mask[:, None, None, :]
    width = (embed_dim,)

    def attend(x: torch.Tensor) -> torch.Tensor:
        projected = F.linear(x, qkv_weight, qkv_bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in projected)
        out = _attended(q, k, v, None if mask is None else mask.to(torch.bool))
        return F.linear(out.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(F.layer_norm(src, width, norm_weight_1, norm_bias_1, eps))
        return x + feed(F.layer_norm(x, width, norm_weight_2, norm_bias_2, eps))
    x = F.layer_norm(src + attend(src), width, norm_weight_1, norm_bias_1, eps)
    return F.layer_norm(x + feed(x), width, norm_weight_2, norm_bias_2, eps)


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropped: torch.Tensor | None
) -> torch.Tensor:
    """Attention of [B, H, L, D]; written out where masked, since a wholly masked row is NaN here."""
    if dropped is None:
        return F.scaled_dot_product_attention(q, k, v)
    scores = (q @ k.mT).mul(q.shape[-1] ** -0.5).masked_fill(dropped, float("-inf"))
    return torch.matmul(scores.softmax(-1), v)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
}
