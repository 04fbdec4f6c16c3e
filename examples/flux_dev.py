"""FLUX.1-dev at full size, 12 billion parameters, on the meta device: nothing is allocated.

fxrewrite sites examples/flux_dev.py:flux
"""

import torch
from diffusers import FluxTransformer2DModel

# The values of the published configuration.
CONFIG = {
    "patch_size": 1,
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
}


def flux(image_tokens: int = 4096, text_tokens: int = 512):
    """The transformer and the inputs of one denoising step of a 1024 x 1024 image."""
    with torch.device("meta"):
        model = FluxTransformer2DModel(**CONFIG).to(torch.bfloat16).eval()
        inputs = {
            "hidden_states": torch.empty(1, image_tokens, 64, dtype=torch.bfloat16),
            "encoder_hidden_states": torch.empty(1, text_tokens, 4096, dtype=torch.bfloat16),
            "pooled_projections": torch.empty(1, 768, dtype=torch.bfloat16),
            "timestep": torch.empty(1, dtype=torch.bfloat16),
            "guidance": torch.empty(1, dtype=torch.bfloat16),
            "img_ids": torch.empty(image_tokens, 3, dtype=torch.bfloat16),
            "txt_ids": torch.empty(text_tokens, 3, dtype=torch.bfloat16),
            "return_dict": False,
        }
    return model, (), inputs


if __name__ == "__main__":
    import fxrewrite

    with torch.no_grad():
        print(fxrewrite.analyze(*flux()))
