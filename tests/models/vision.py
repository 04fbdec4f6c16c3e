"""Vision models of transformers."""

import torch

from tests.support.modules import noise, tokens

from . import MODELS
from .language import transformers_model

FP32 = torch.float32
ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "image_size": 24,
    "patch_size": 8,
}


@MODELS.add("vit", needs="transformers", quick=True, fused=2, linear=13)
def _():
    model = transformers_model("ViTConfig", "ViTModel", "sdpa", FP32, **ENCODER)
    return model, (), {"pixel_values": noise(2, 3, 24, 24, seed=1)}


@MODELS.add("clip-vision-eager", needs="transformers", manual=2, linear=12)
def _():
    model = transformers_model("CLIPVisionConfig", "CLIPVisionModel", "eager", FP32, **ENCODER)
    return model, (), {"pixel_values": noise(2, 3, 24, 24, seed=1)}


@MODELS.add("clip-text", needs="transformers", fused=2, linear=12)
def _():
    model = transformers_model(
        "CLIPTextConfig",
        "CLIPTextModel",
        "sdpa",
        FP32,
        vocab_size=120,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )
    return model, (), {"input_ids": tokens(2, 9)}


# 3 blocks with 6 each, 1 patch merging
@MODELS.add("swin-shifted-windows", needs="transformers", manual=3, linear=19)
def _():
    model = transformers_model(
        "SwinConfig",
        "SwinModel",
        "eager",
        FP32,
        image_size=16,
        patch_size=2,
        embed_dim=32,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
    )
    return model, (), {"pixel_values": noise(1, 3, 16, 16, seed=1)}


@MODELS.add("swin-bf16", needs="transformers", manual=3, linear=19)
def _():
    model, args, kwargs = MODELS["swin-shifted-windows"].build()
    return model.bfloat16(), args, {k: v.bfloat16() for k, v in kwargs.items()}
