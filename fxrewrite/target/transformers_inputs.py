"""Example inputs of transformers models, from their configuration and ``main_input_name``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

TOKENS = 128
"""Tokens of a prompt; models that take fewer get as many as they take."""
SAMPLES, FRAMES = 16000, 3000
"""Samples of a second of sound, and frames of a log-mel spectrogram of half a minute."""


def candidates(model: Any, signature: inspect.Signature, dtype: Any) -> Iterator[dict[str, Any]]:
    """Inputs to try, the likeliest first: the main input alone, then all that the signature names."""
    known = _known(model.config, dtype)
    fixed = {"use_cache": False, "return_dict": False}
    if getattr(model.config, "is_encoder_decoder", False):
        fixed["decoder_input_ids"] = known["input_ids"]
    main = {model.main_input_name: known[model.main_input_name]} if model.main_input_name in known else {}
    for chosen in (main, {name: value for name, value in known.items() if name != "inputs_embeds"}, known):
        yield {name: value for name, value in {**chosen, **fixed}.items() if name in signature.parameters}


def _known(config: Any, dtype: Any) -> dict[str, Any]:
    import torch

    def tensor(*sizes: int, dtype: Any = dtype) -> Any:
        return torch.empty(sizes, dtype=dtype, device="meta")

    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vision = getattr(config, "vision_config", None) or config
    tokens = min(TOKENS, getattr(text, "max_position_embeddings", None) or TOKENS)
    side = getattr(vision, "image_size", None) or 224
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    found = {
        "input_ids": tensor(1, tokens, dtype=torch.int64),
        "pixel_values": tensor(1, getattr(vision, "num_channels", 3), height, width),
        "input_values": tensor(1, SAMPLES),
        "input_features": tensor(1, getattr(config, "num_mel_bins", 80), FRAMES),
    }
    if hidden := getattr(text, "hidden_size", None):
        found["inputs_embeds"] = tensor(1, tokens, hidden)
    return found
