"""A whole diffusers pipeline, rewritten in one call; quality chosen for each run of it.

    python examples/pipeline.py

The pipeline is a small DiT on random weights. Its models are rewritten in place: ``pipe`` is used as before.
"""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

import fxrewrite


def small_pipeline() -> DiTPipeline:
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=64,
        out_channels=8,  # noise and variance
        sample_size=16,
    )
    vae = AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, latent_channels=4, sample_size=16)
    pipe = DiTPipeline(transformer.to(torch.bfloat16), vae.to(torch.bfloat16), DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def main() -> None:
    pipe = small_pipeline()

    def image() -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        result = pipe(class_labels=[7], num_inference_steps=2, generator=generator, output_type="np")
        return torch.from_numpy(result.images)

    before = image()
    report = fxrewrite.rewrite(pipe)
    after = image()
    print(report.summary())  # grown by the run
    print(f"largest difference to the original image: {(after - before).abs().max():.3g}")
    with fxrewrite.quality("exact"):  # the original graphs, without compiling anything again
        print(f"under quality('exact'): {(image() - before).abs().max():.3g}")
    fxrewrite.restore(pipe)


if __name__ == "__main__":
    main()
