"""Example inputs of transformers models, from their configuration and ``main_input_name``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from .configured import first_of

TOKENS = 128
"""Tokens of a prompt; models that take fewer get as many as they take."""
SAMPLES, FRAMES = 16000, 3000
"""Samples of a second of sound, and frames of a log-mel spectrogram of half a minute."""
PICTURES = 16
"""Pictures of a clip, where the configuration does not say."""


def candidates(model: Any, signature: inspect.Signature, dtype: Any) -> Iterator[dict[str, Any]]:
    """Inputs to try, the likeliest first: the main input alone, then all that the signature names; then both
    in the other layout that inputs of the kind have.
    """
    names = signature.parameters
    required = [name for name, parameter in names.items() if parameter.default is parameter.empty]
    fixed = {"use_cache": False, "return_dict": False}
    for known in _layouts(model.config, dtype):
        if getattr(model.config, "is_encoder_decoder", False):
            fixed["decoder_input_ids"] = known["input_ids"]
        needed = {name: known[kind] for name in required for kind in known if name.endswith(f"_{kind}")}
        main = {name: known[name] for name in (model.main_input_name, *required) if name in known}
        for chosen in (
            main,
            {name: value for name, value in known.items() if name != "inputs_embeds"},
            known,
        ):
            yield {name: value for name, value in {**needed, **chosen, **fixed}.items() if name in names}


def _layouts(config: Any, dtype: Any) -> Iterator[dict[str, Any]]:
    """What is known of inputs by their names, or by how their names end."""
    import torch

    def tensor(*sizes: int, dtype: Any = dtype) -> Any:
        return torch.empty(sizes, dtype=dtype, device="meta")

    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vision = getattr(config, "vision_config", None) or config
    tokens = min(TOKENS, getattr(text, "max_position_embeddings", None) or TOKENS)
    side = first_of(vision, ("image_size", "crop_size"), 224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    channels = first_of(vision, ("num_channels", "in_chans"), 3)
    pictures = first_of(vision, ("num_frames", "frames_per_clip"), PICTURES)
    mel = first_of(config, ("num_mel_bins", "n_mels"), 80)
    found = {
        "input_ids": tensor(1, tokens, dtype=torch.int64),
        "pixel_values": tensor(1, channels, height, width),
        "input_values": tensor(1, SAMPLES),
        "input_features": tensor(1, mel, FRAMES),
        "pixel_values_videos": tensor(1, pictures, channels, height, width),
    }
    if hidden := getattr(text, "hidden_size", None):
        found["inputs_embeds"] = tensor(1, tokens, hidden)
    yield found
    yield {
        **found,
        "pixel_values": found["pixel_values_videos"],
        "input_values": tensor(1, 1, SAMPLES),
        "input_features": tensor(1, FRAMES, mel),
    }
