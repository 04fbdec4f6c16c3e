"""``fxrewrite::sdpa``: softmax(scale · Q·Kᵀ + mask) · V.

One op carries both meanings that models use: that of ``torch.nn.functional.
scaled_dot_product_attention`` and that of the same formula written out by hand, which differ in
what a masked score becomes (``mask_fill``) and in what a wholly masked row gives
(``safe_softmax``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .library import define


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    mask_fill: float | None = None,
    safe_softmax: bool = True,
    token_major: bool = True,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    window: int = 0,
) -> torch.Tensor:
    """``query`` [B, H, L, D], ``key`` [B, G, S, D], ``value`` [B, G, S, Dv]: result [B, H, L, Dv].

    * ``attn_mask`` broadcasts to [B, H, L, S]. Boolean: True is attended to. Float (any float
      dtype): added to the scaled scores.
    * ``is_causal``: key j is attended to by query i where j <= i (aligned top left).
    * ``scale``: None is 1/sqrt(D).
    * ``enable_gqa``: H is a multiple of G, and head h reads key and value head h // (H // G).
    * ``mask_fill``: None makes a masked score -inf by adding -inf (a NaN score stays NaN); a number
      *replaces* the score of every place where the boolean mask is False (after scaling).
    * ``safe_softmax``: a row whose scores are all -inf gives zeros (True, as the fused call does)
      or NaN (False, as ``softmax`` does).
    * ``token_major``: memory order of the result, [B, L, H, Dv] (True) or [B, H, L, Dv] (False).
      The result's logical shape is the same.
    * ``softcap``: where not 0, a scaled score s becomes softcap · tanh(s / softcap) before it is masked
      (Gemma 2, 2024).
    * ``sinks`` [H]: a score for each head that takes part in the softmax's sum and has no value (GPT-OSS;
      Xiao et al., 2023). A row with a finite sink is never wholly masked.
    * ``window``: where not 0, query i sees key j only where |i - j| < window; with ``is_causal`` these are
      the last ``window`` keys up to its own.
    """
    if mask_fill is None and safe_softmax and not softcap and sinks is None and not window:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    else:
        out = _written_out(
            query,
            key,
            value,
            attn_mask,
            is_causal,
            scale,
            enable_gqa,
            mask_fill,
            safe_softmax,
            softcap,
            sinks,
            window,
        )
    return restride(out, token_major)


def _written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_fill: float | None,
    safe_softmax: bool,
    softcap: float,
    sinks: torch.Tensor | None,
    window: int,
) -> torch.Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)
    if enable_gqa:
        group = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.to(wide) @ key.to(wide).mT * factor
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        if mask_fill is None:
            scores = scores + torch.zeros_like(attn_mask, dtype=wide).masked_fill(~attn_mask, float("-inf"))
        else:
            scores = scores.masked_fill(~attn_mask, mask_fill)
    elif attn_mask is not None:
        scores = scores + attn_mask.to(wide)
    if is_causal or window:
        ahead = torch.arange(scores.shape[-1], device=scores.device) - torch.arange(
            scores.shape[-2], device=scores.device
        ).unsqueeze(-1)
        unseen = (ahead > 0) if is_causal else (ahead >= window)
        if window:
            unseen = unseen | (ahead <= -window)
        scores = scores.masked_fill(unseen, float("-inf"))
    if sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        sink = sinks.to(wide).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    if safe_softmax:
        weights = weights.masked_fill((scores == float("-inf")).all(dim=-1, keepdim=True), 0.0)
    return weights.to(value.dtype) @ value


def restride(out: torch.Tensor, token_major: bool) -> torch.Tensor:
    """``out`` [B, H, L, Dv] with the memory order that ``token_major`` asks for."""
    if token_major:
        return out.transpose(1, 2).contiguous().transpose(1, 2)
    return out.contiguous()


def fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    mask_fill: float | None = None,
    safe_softmax: bool = True,
    token_major: bool = True,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    window: int = 0,
) -> torch.Tensor:
    batch, heads, length, _ = query.shape
    width = value.shape[-1]
    if token_major:
        return query.new_empty(batch, length, heads, width).transpose(1, 2)
    return query.new_empty(batch, heads, length, width)


op = define(
    "sdpa(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, *, bool is_causal=False,"
    " float? scale=None, bool enable_gqa=False, float? mask_fill=None, bool safe_softmax=True,"
    " bool token_major=True, float softcap=0.0, Tensor? sinks=None, int window=0) -> Tensor",
    reference=reference,
    fake=fake,
)
