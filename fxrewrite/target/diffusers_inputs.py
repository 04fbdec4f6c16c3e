"""Example inputs of diffusers models, from their configuration.

The library's models have one vocabulary: ``forward`` names its inputs, and the configuration their
sizes. What differs without a word in the configuration is the layout of the latents: each is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .configured import first_of, value_of

TEXT_TOKENS, FRAMES, SIZE = 128, 5, 32
"""Where the configuration does not say: tokens of a prompt, frames and height or width of latents."""
LONG_CLIP, LARGE = 17, 128
"""Frames, and height or width, of a clip for models that make both smaller many times."""
IMAGE_TOKENS = 257
"""Tokens of a picture, as an encoder of 16 x 16 patches gives them."""

_TEXT_WIDTHS = (
    *("encoder_hid_dim", "caption_channels", "joint_attention_dim", "text_embed_dim", "text_dim"),
    *("cap_feat_dim", "text_in_dim", "in_text_dim", "context_in_dim", "text_hidden_dim", "cond_token_dim"),
    *("condition_dim", "cross_attention_input_dim", "cross_attention_dim"),
)
_IMAGE_WIDTHS = ("image_dim", "image_embed_dim", "image_proj_dim", "clip_image_in_channels")
_PICTURES = {"encoder_hidden_states_image", "image_embeds", "image_embeddings", "image_latents"}
_CHANNELS = ("in_channels", "in_visual_dim", "io_channels", "in_dim", "input_channels", "image_channels")
_LATENTS = ("hidden_states", "sample", "z")
_SOME_WIDTH = 768
"""Of embeddings whose width the configuration does not name: the layer that takes them will tell."""


def candidates(model: Any, signature: inspect.Signature, dtype: Any) -> Iterator[dict[str, Any]]:
    """Inputs to try, the likeliest first: what each layout of latents needs, then all that is known."""
    config, names = model.config, signature.parameters
    required = {name for name, parameter in names.items() if parameter.default is parameter.empty}
    channels = first_of(config, _CHANNELS, 3 if "sample" in names and "timestep" not in names else 4)
    for chosen in (required, names.keys() - _PICTURES, names.keys()):
        for latents, extent in _latents(channels, *_extent(config)):
            sizes = _Sizes(config, dtype, latents, channels, *extent)
            yield {
                **{name: sizes.tensor(*latents) for name in _LATENTS if name in names},
                **{name: build(sizes) for name, build in _KNOWN.items() if name in names},
                **{name: build(sizes) for name, build in _OPTIONAL.items() if name in chosen},
                **_named_by_configuration(sizes, names),
            }


def _latents(
    channels: int, height: int, width: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, int, int]]]:
    """Shapes of the latents, with frames, height and width."""
    image = (1, height, width)
    yield (1, channels, height, width), image
    yield (1, channels, FRAMES, height, width), (FRAMES, height, width)
    yield (1, FRAMES, channels, height, width), (FRAMES, height, width)
    yield (1, height * width, channels), image
    yield (1, channels, height * width), image
    yield (1, FRAMES, height, width, channels), (FRAMES, height, width)
    yield (1, channels, 1, height, width), image
    height, width = max(height, LARGE), max(width, LARGE)
    yield (1, channels, LONG_CLIP, height, width), (LONG_CLIP, height, width)


def _extent(config: Any) -> tuple[int, int]:
    size = value_of(config, "sample_size") or SIZE
    if isinstance(size, (list, tuple)):
        return int(size[0]), int(size[-1])
    return int(value_of(config, "sample_height") or size), int(value_of(config, "sample_width") or size)


@dataclass(frozen=True)
class _Sizes:
    """What the sizes of a model's inputs follow from."""

    config: Any
    dtype: Any
    latents: tuple[int, ...]
    channels: int
    frames: int
    height: int
    width: int

    def tensor(self, *sizes: int, dtype: Any = None) -> Any:
        return torch.empty(sizes, dtype=dtype or self.dtype, device="meta")

    def integers(self, *sizes: int) -> Any:
        return self.tensor(*sizes, dtype=torch.int64)

    def truths(self, *sizes: int) -> Any:
        return self.tensor(*sizes, dtype=torch.bool)

    @property
    def tokens(self) -> int:
        return self.frames * self.height * self.width

    @property
    def text_tokens(self) -> int:
        return int(value_of(self.config, "max_text_seq_length") or TEXT_TOKENS)

    @property
    def axes(self) -> int:
        return len(first_of(self.config, ("axes_dims_rope", "axes_dim_rope", "axes_dims"), (0, 0, 0)))

    def text(self, *names: str) -> Any:
        """Embeddings of a prompt, as wide as the configuration says under one of ``names``."""
        return self.tensor(1, self.text_tokens, _one(first_of(self.config, names, _SOME_WIDTH)))

    def picture(self) -> Any:
        """Embeddings of a picture."""
        return self.tensor(1, IMAGE_TOKENS, _one(first_of(self.config, _IMAGE_WIDTHS, _SOME_WIDTH)))


_Build = Callable[[_Sizes], Any]

# Passed wherever forward names them.
_KNOWN: dict[str, _Build] = {
    "timestep": lambda s: s.tensor(1),
    "timesteps": lambda s: s.tensor(1),
    "r_timestep": lambda s: s.tensor(1),
    "timestep_ratio": lambda s: s.tensor(1),
    "t": lambda s: s.tensor(1),
    "img_ids": lambda s: s.tensor(s.tokens, s.axes),
    "txt_ids": lambda s: s.tensor(s.text_tokens, s.axes),
    "return_dict": lambda s: False,
    "original_size": lambda s: s.tensor(1, 2),
    "target_size": lambda s: s.tensor(1, 2),
    "crop_coords": lambda s: s.tensor(1, 2),
    "added_cond_kwargs": lambda s: _added(s),
}

# Passed where forward requires them; to all that name them if nothing less is taken, pictures last.
_OPTIONAL: dict[str, _Build] = {
    "encoder_hidden_states": lambda s: s.text(*_TEXT_WIDTHS),
    "encoder_hidden_states_2": lambda s: s.text("text_embed_2_dim"),
    "cap_feats": lambda s: [s.text(*_TEXT_WIDTHS)[0]],
    "pooled_projections": lambda s: s.tensor(1, _SOME_WIDTH),
    "clip_text_pooled": lambda s: s.tensor(
        1, 1, first_of(s.config, ("clip_text_pooled_in_channels",), _SOME_WIDTH)
    ),
    "encoder_attention_mask": lambda s: s.truths(1, s.text_tokens),
    "encoder_attention_mask_2": lambda s: s.truths(1, s.text_tokens),
    "encoder_hidden_states_mask": lambda s: s.truths(1, s.text_tokens),
    "img_mask": lambda s: s.truths(1, s.text_tokens + s.tokens // 4),
    "mask": lambda s: s.truths(1, s.text_tokens),
    "encoder_hidden_states_image": lambda s: s.picture(),
    "image_embeds": lambda s: s.picture(),
    "image_embeddings": lambda s: s.tensor(1, _one(first_of(s.config, _TEXT_WIDTHS, _SOME_WIDTH))),
    "image_latents": lambda s: s.tensor(*s.latents),
    "control_hidden_states": lambda s: s.tensor(
        1, first_of(s.config, ("vace_in_channels",), s.channels), s.frames, s.height, s.width
    ),
    "x": lambda s: [s.tensor(s.channels, s.frames, s.height, s.width)],
    "img_shapes": lambda s: [[(s.frames, s.height, s.width)]],
    "position_ids": lambda s: s.tensor(s.text_tokens + s.tokens, s.axes),
    "visual_rope_pos": lambda s: [s.integers(s.frames), s.integers(s.height // 2), s.integers(s.width // 2)],
    "text_rope_pos": lambda s: s.integers(s.text_tokens),
    "indices_latents": lambda s: s.integers(1, s.frames),
    "prior_token_id": lambda s: s.integers(1, s.height * s.width // 4),
    "prior_token_drop": lambda s: s.truths(1, s.height * s.width // 4),
    "added_time_ids": lambda s: s.tensor(1, 3),
    "fps": lambda s: s.tensor(1),
    "padding_mask": lambda s: s.tensor(1, 1, s.height, s.width),
}


def _named_by_configuration(sizes: _Sizes, names: Any) -> dict[str, Any]:
    """Inputs that a model takes where its configuration says so."""
    config = sizes.config
    found: dict[str, Any] = {}
    if first_of(config, _TEXT_WIDTHS, None):
        found["encoder_hidden_states"] = sizes.text(*_TEXT_WIDTHS)
    if pooled := first_of(config, ("pooled_projection_dim", "in_text_dim2"), None):
        found["pooled_projections"] = sizes.tensor(1, pooled)
    if value_of(config, "guidance_embeds"):
        found["guidance"] = sizes.tensor(1)
    if value_of(config, "num_embeds_ada_norm") or value_of(config, "num_class_embeds"):
        found["class_labels"] = sizes.integers(1)
    if {"num_frames", "height", "width"} <= names.keys():
        found.update(num_frames=sizes.frames, height=sizes.height, width=sizes.width)
    return {name: value for name, value in found.items() if name in names}


def _added(sizes: _Sizes) -> dict[str, Any]:
    """Conditions that are passed in a dict of their own."""
    config = sizes.config
    if value_of(config, "addition_embed_type") == "text_time":
        ids = 6  # original size, crop and target size, two numbers each
        text = config.projection_class_embeddings_input_dim - ids * config.addition_time_embed_dim
        return {"text_embeds": sizes.tensor(1, text), "time_ids": sizes.tensor(1, ids)}
    return {"resolution": sizes.tensor(1, 2), "aspect_ratio": sizes.tensor(1, 1)}


def _one(width: Any) -> int:
    return int(width[0]) if isinstance(width, (list, tuple)) else int(width)
