"""Example inputs of diffusers models, from their configuration.

The library's models have one vocabulary: ``forward`` names its inputs, and the configuration their
sizes. What differs without a word in the configuration is the layout of the latents: each is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

TEXT_TOKENS, FRAMES, SIZE = 128, 5, 32
"""Where the configuration does not say: tokens of a prompt, frames and height or width of latents."""

_TEXT_WIDTHS = (
    *("encoder_hid_dim", "caption_channels", "joint_attention_dim", "text_embed_dim", "text_dim"),
    *("cap_feat_dim", "text_in_dim", "context_in_dim", "text_hidden_dim", "in_text_dim"),
    *("cond_token_dim", "condition_dim", "cross_attention_input_dim", "cross_attention_dim"),
)
_CHANNELS = ("in_channels", "in_visual_dim", "io_channels", "in_dim")
_LATENTS = ("hidden_states", "sample")


def candidates(model: Any, signature: inspect.Signature, dtype: Any) -> Iterator[dict[str, Any]]:
    """Inputs to try, the likeliest first."""
    import torch

    config = model.config
    for shape, extent in _latents(config):

        def tensor(*sizes: int, dtype: Any = dtype) -> Any:
            return torch.empty(sizes, dtype=dtype, device="meta")

        known = {**dict.fromkeys(_LATENTS, tensor(*shape)), **_conditions(config, signature, tensor, extent)}
        yield {name: value for name, value in known.items() if name in signature.parameters}


def _latents(config: Any) -> Iterator[tuple[tuple[int, ...], tuple[int, int, int]]]:
    """Shapes of the latents, with frames, height and width."""
    channels = _first(config, _CHANNELS, 4)
    height, width = _extent(config)
    frames = FRAMES
    image, video = (1, height, width), (frames, height, width)
    yield (1, channels, height, width), image
    yield (1, channels, frames, height, width), video
    yield (1, frames, channels, height, width), video
    yield (1, height * width, channels), image
    yield (1, channels, height * width), image


def _extent(config: Any) -> tuple[int, int]:
    size = _get(config, "sample_size") or SIZE
    if isinstance(size, (list, tuple)):
        return int(size[0]), int(size[-1])
    return int(_get(config, "sample_height") or size), int(_get(config, "sample_width") or size)


def _conditions(
    config: Any, signature: inspect.Signature, tensor: Any, extent: tuple[int, int, int]
) -> dict[str, Any]:
    """Everything but the latents, as far as the configuration tells."""
    import torch

    frames, height, width = extent
    image_tokens = frames * height * width
    text_tokens = _get(config, "max_text_seq_length") or TEXT_TOKENS
    axes = len(_first(config, ("axes_dims_rope", "axes_dim_rope"), (0, 0, 0)))
    found = {
        "timestep": tensor(1),
        "timesteps": tensor(1),
        "r_timestep": tensor(1),
        "img_ids": tensor(image_tokens, axes),
        "txt_ids": tensor(text_tokens, axes),
        "return_dict": False,
        **{name: tensor(1, 2) for name in ("original_size", "target_size", "crop_coords")},
    }
    if text_width := _first(config, _TEXT_WIDTHS, None):
        found["encoder_hidden_states"] = tensor(1, text_tokens, _one(text_width))
    if pooled := _first(config, ("pooled_projection_dim", "in_text_dim2"), None):
        found["pooled_projections"] = tensor(1, pooled)
    for name in ("encoder_attention_mask", "encoder_hidden_states_mask"):
        if name in signature.parameters and signature.parameters[name].default is inspect.Parameter.empty:
            found[name] = tensor(1, text_tokens, dtype=torch.bool)
    if _get(config, "guidance_embeds"):
        found["guidance"] = tensor(1)
    if _get(config, "num_embeds_ada_norm") or _get(config, "num_class_embeds"):
        found["class_labels"] = tensor(1, dtype=torch.int64)
    if {"num_frames", "height", "width"} <= signature.parameters.keys():
        found.update(num_frames=frames, height=height, width=width)
    found["added_cond_kwargs"] = _added(config, tensor)
    return found


def _added(config: Any, tensor: Any) -> dict[str, Any]:
    """Conditions that are passed in a dict of their own."""
    if _get(config, "addition_embed_type") == "text_time":
        ids = 6  # original size, crop and target size, two numbers each
        text = config.projection_class_embeddings_input_dim - ids * config.addition_time_embed_dim
        return {"text_embeds": tensor(1, text), "time_ids": tensor(1, ids)}
    return {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)}


def _one(width: Any) -> int:
    return int(width[0]) if isinstance(width, (list, tuple)) else int(width)


def _get(config: Any, name: str) -> Any:
    return config.get(name) if hasattr(config, "get") else getattr(config, name, None)


def _first(config: Any, names: tuple[str, ...], default: Any) -> Any:
    return next((value for name in names if (value := _get(config, name)) is not None), default)
