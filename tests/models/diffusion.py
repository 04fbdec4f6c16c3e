"""Transformers, U-Nets and autoencoders of diffusers."""

import torch

from tests.support.modules import noise

from . import MODELS

BF16 = torch.bfloat16


def diffusers_model(name: str, dtype: torch.dtype, **config):
    import diffusers

    return getattr(diffusers, name)(**config).to(dtype)


def text_mask(length: int, real: int, batch: int = 2) -> torch.Tensor:
    mask = torch.ones(batch, length)
    mask[-1, real:] = 0
    return mask


def sana(dtype=BF16, **extra):
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 3,
        "attention_head_dim": 32,
        "num_layers": 2,
        "num_cross_attention_heads": 3,
        "cross_attention_head_dim": 32,
        "cross_attention_dim": 96,
        "caption_channels": 48,
        "mlp_ratio": 2.0,
        "sample_size": 6,
        "patch_size": 1,
    }
    return diffusers_model("SanaTransformer2DModel", dtype, **{**config, **extra})


def sana_inputs(dtype=BF16, side=6):
    return {
        "hidden_states": noise(2, 4, side, side, seed=1, dtype=dtype),
        "encoder_hidden_states": noise(2, 7, 48, seed=2, dtype=dtype),
        "encoder_attention_mask": text_mask(7, 5).to(dtype),
        "timestep": torch.tensor([120.0, 640.0]).to(dtype),
        "return_dict": False,
    }


# a block: q, k, v, out of both attentions = 8; beside the blocks: 3 of the time embedding, 2 of the caption
# projection, 1 of the output
@MODELS.add("sana", needs="diffusers", quick=True, fused=2, linear_attention=2, linear=22)
def _():
    return sana(), (), sana_inputs()


@MODELS.add("sana-qknorm-fp32", needs="diffusers", fused=2, linear_attention=2, linear=24)
def _():
    kwargs = sana_inputs(torch.float32)
    kwargs["guidance"] = torch.tensor([4.0, 4.0])
    return sana(torch.float32, qk_norm="rms_norm_across_heads", guidance_embeds=True), (), kwargs


@MODELS.add("sana-video", needs="diffusers", quick=True, fused=2, linear_attention=2, linear=22)
def _():
    model = diffusers_model(
        "SanaVideoTransformer3DModel",
        BF16,
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=48,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=48,
        cross_attention_dim=96,
        caption_channels=40,
        mlp_ratio=2.0,
        sample_size=6,
        patch_size=(1, 2, 2),
    )
    return (
        model,
        (),
        {
            "hidden_states": noise(2, 4, 2, 6, 6, seed=1, dtype=BF16),
            "encoder_hidden_states": noise(2, 6, 40, seed=2, dtype=BF16),
            "encoder_attention_mask": text_mask(6, 4).to(BF16),
            "timestep": torch.tensor([120.0, 640.0]).to(BF16),
            "return_dict": False,
        },
    )


def grid_ids(height: int, width: int) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.zeros(height * width), rows.flatten(), columns.flatten()], 1)


@MODELS.add("flux", needs="diffusers", quick=True, fused=3, linear=34)
def _():
    model = diffusers_model(
        "FluxTransformer2DModel",
        BF16,
        patch_size=1,
        in_channels=8,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=40,
        pooled_projection_dim=24,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    )
    return (
        model,
        (),
        {
            "hidden_states": noise(2, 12, 8, seed=1, dtype=BF16),
            "encoder_hidden_states": noise(2, 5, 40, seed=2, dtype=BF16),
            "pooled_projections": noise(2, 24, seed=3, dtype=BF16),
            "timestep": torch.tensor([0.25, 0.5]).to(BF16),
            "img_ids": grid_ids(3, 4).to(BF16),
            "txt_ids": torch.zeros(5, 3, dtype=BF16),
            "return_dict": False,
        },
    )


@MODELS.add("sd3", needs="diffusers", fused=3, linear=36)
def _():
    model = diffusers_model(
        "SD3Transformer2DModel",
        BF16,
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=40,
        caption_projection_dim=96,
        pooled_projection_dim=32,
        pos_embed_max_size=12,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    return (
        model,
        (),
        {
            "hidden_states": noise(2, 4, 8, 8, seed=1, dtype=BF16),
            "encoder_hidden_states": noise(2, 6, 40, seed=2, dtype=BF16),
            "pooled_projections": noise(2, 32, seed=3, dtype=BF16),
            "timestep": torch.tensor([100.0, 700.0]).to(BF16),
            "return_dict": False,
        },
    )


@MODELS.add("wan", needs="diffusers", quick=True, fused=4, linear=26)
def _():
    model = diffusers_model(
        "WanTransformer3DModel",
        BF16,
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=48,
        in_channels=4,
        out_channels=4,
        text_dim=40,
        freq_dim=16,
        ffn_dim=160,
        num_layers=2,
        rope_max_seq_len=16,
    )
    return (
        model,
        (),
        {
            "hidden_states": noise(1, 4, 2, 6, 6, seed=1, dtype=BF16),
            "encoder_hidden_states": noise(1, 7, 40, seed=2, dtype=BF16),
            "timestep": torch.tensor([300]),
            "return_dict": False,
        },
    )


@MODELS.add("pixart", needs="diffusers", fused=4, linear=26)
def _():
    model = diffusers_model(
        "PixArtTransformer2DModel",
        BF16,
        num_attention_heads=2,
        attention_head_dim=36,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        cross_attention_dim=72,
        sample_size=8,
        patch_size=2,
        caption_channels=40,
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        use_additional_conditions=False,
    )
    return (
        model,
        (),
        {
            "hidden_states": noise(2, 4, 8, 8, seed=1, dtype=BF16),
            "encoder_hidden_states": noise(2, 6, 40, seed=2, dtype=BF16),
            "encoder_attention_mask": text_mask(6, 4).to(BF16),
            "timestep": torch.tensor([100, 700]),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            "return_dict": False,
        },
    )


@MODELS.add("ltx-video", needs="diffusers", fused=4, linear=27)
def _():
    model = diffusers_model(
        "LTXVideoTransformer3DModel",
        BF16,
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        cross_attention_dim=64,
        num_layers=2,
        caption_channels=24,
    )
    return (
        model,
        (),
        {
            "hidden_states": noise(2, 2 * 3 * 4, 8, seed=1, dtype=BF16),
            "encoder_hidden_states": noise(2, 6, 24, seed=2, dtype=BF16),
            "encoder_attention_mask": text_mask(6, 4).to(BF16),
            "timestep": torch.tensor([100, 700]),
            "num_frames": 2,
            "height": 3,
            "width": 4,
            "return_dict": False,
        },
    )


def unet(dtype):
    return diffusers_model(
        "UNet2DConditionModel",
        dtype,
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=2,
        norm_num_groups=8,
    )


def unet_inputs(dtype):
    return {
        "sample": noise(2, 4, 8, 8, seed=1, dtype=dtype),
        "timestep": torch.tensor(321),
        "encoder_hidden_states": noise(2, 6, 24, seed=2, dtype=dtype),
        "return_dict": False,
    }


# 4 transformer blocks (1 down, 1 middle, 2 up): 8 projections and 2 of the feed-forward each; 8 residual
# blocks with a time projection, 2 of the time embedding
@MODELS.add("unet", needs="diffusers", fused=8, linear=50)
def _():
    return unet(BF16), (), unet_inputs(BF16)


@MODELS.add("unet-manual-attention", needs="diffusers", manual=8, linear=50)
def _():
    from diffusers.models.attention_processor import AttnProcessor

    model = unet(torch.float32)
    model.set_attn_processor(AttnProcessor())
    return model, (), unet_inputs(torch.float32)


@MODELS.add("autoencoder-kl", needs="diffusers", quick=True, fused=2, linear=8)
def _():
    model = diffusers_model(
        "AutoencoderKL",
        torch.float32,
        block_out_channels=(16, 48),
        layers_per_block=1,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        sample_size=16,
    )
    return model, (), {"sample": noise(1, 3, 16, 16, seed=1), "return_dict": False}


@MODELS.add("autoencoder-dc", needs="diffusers", linear_attention=2, linear=8)
def _():
    model = diffusers_model(
        "AutoencoderDC",
        torch.float32,
        in_channels=3,
        latent_channels=4,
        attention_head_dim=16,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(16, 32),
        decoder_block_out_channels=(16, 32),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
    )
    return model, (), {"sample": noise(1, 3, 32, 32, seed=1), "return_dict": False}
