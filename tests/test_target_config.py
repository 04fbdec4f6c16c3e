"""TARGETs that are configurations: of diffusers, of transformers, of a whole pipeline."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from fxrewrite.cli import main
from fxrewrite.target import config

from .support.command_line import fails, folder_of_models

SANA = {
    "_class_name": "SanaTransformer2DModel",
    "num_layers": 1,
    "sample_size": 8,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 24,
    "in_channels": 4,
    "out_channels": 4,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "num_layers": 1,
    "num_single_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "axes_dims_rope": [4, 6, 6],
    "joint_attention_dim": 48,
    "pooled_projection_dim": 40,
    "in_channels": 12,
}
UNET = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 8,
    "block_out_channels": [32, 32],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 24,
    "attention_head_dim": 8,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 68,
}
WAN = {
    "_class_name": "WanTransformer3DModel",
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 24,
    "freq_dim": 16,
    "ffn_dim": 32,
}
QWEN = {
    "_class_name": "QwenImageTransformer2DModel",
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "axes_dims_rope": [4, 6, 6],
    "joint_attention_dim": 48,
    "in_channels": 16,
    "out_channels": 4,
}
Z_IMAGE = {
    "_class_name": "ZImageTransformer2DModel",
    "dim": 64,
    "n_layers": 1,
    "n_refiner_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 4,
    "axes_dims": [4, 6, 6],
    "cap_feat_dim": 24,
    "in_channels": 4,
}
VACE = {**WAN, "_class_name": "WanVACETransformer3DModel", "vace_layers": [0], "vace_in_channels": 7}
TINY = {
    "_class_name": "AutoencoderTiny",
    "encoder_block_out_channels": [8, 8],
    "decoder_block_out_channels": [8, 8],
}
TINY |= {"num_encoder_blocks": [1, 1], "num_decoder_blocks": [1, 1]}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "torch_dtype": "float16",
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 1,
    "num_heads": 4,
    "vocab_size": 99,
}
SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
CLIP = {
    "model_type": "clip",
    "architectures": ["CLIPModel"],
    "text_config": SMALL,
    "vision_config": {**SMALL, "image_size": 32, "patch_size": 8},
}

CLIP_OF_PICTURES = {
    "model_type": "timesformer",
    "architectures": ["TimesformerModel"],
    **SMALL,
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 2,
}
SOUND = {"model_type": "parakeet_encoder", "architectures": ["ParakeetEncoder"], **SMALL, "num_mel_bins": 16}


@pytest.fixture(autouse=True)
def _models(tmp_path: Path) -> Iterator[None]:
    torch.compiler.reset()  # sizes that another test had are not to make these symbolic
    with folder_of_models(tmp_path):
        yield


def sites(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sites", *arguments])


def written(config: Any, path: str = "config.json") -> str:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "inputs", "kinds"),
    [
        pytest.param(QWEN, "img_shapes=[[(1, 32, 32)]]", {"sdpa": 1}, marks=pytest.mark.slow),
        pytest.param(Z_IMAGE, "x=[bfloat16[4, 1, 32, 32]]", {"sdpa": 3}, marks=pytest.mark.slow),
        pytest.param(VACE, "=bfloat16[1, 7, 5, 32, 32]", {"sdpa": 4}, marks=pytest.mark.slow),
        (SANA, "hidden_states=bfloat16[1, 4, 8, 8]", {"sdpa": 1, "linear_attention": 1}),
        pytest.param(FLUX, "hidden_states=bfloat16[1, 1024, 12]", {"sdpa": 2}, marks=pytest.mark.slow),
        pytest.param(UNET, "time_ids: bfloat16[1, 6]", {"sdpa": 8}, marks=pytest.mark.slow),
        pytest.param(WAN, "hidden_states=bfloat16[1, 4, 5, 32, 32]", {"sdpa": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.get("_class_name", "") if isinstance(value, dict) else "",
)
def test_diffusers(config, inputs, kinds):
    pytest.importorskip("diffusers")
    result = sites(written(config), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert f"{config['_class_name']} on the meta device in bfloat16, called with " in report["notes"][0]
    assert inputs in report["notes"][0]
    for kind, count in kinds.items():
        assert sum(site["kind"] == kind for site in report["sites"]) == count


def test_a_model_that_runs_in_float32_alone():
    """Whose forward, in half precision, gives a convolution float32."""
    pytest.importorskip("diffusers")
    note = json.loads(sites(written(TINY), "--json").stdout)["notes"][0]
    assert note == (
        "AutoencoderTiny on the meta device in float32, called with sample=float32[1, 3, 32, 32], return_dict=False"
    )
    fails(sites(written(TINY), "--dtype", "bf16"), "Input type (float) and bias type (c10::BFloat16)")


@pytest.mark.parametrize(
    ("config", "dtype", "inputs", "count"),
    [
        (LLAMA, "float16", "input_ids=int64[1, 128]", 2),
        pytest.param(T5, "bfloat16", "decoder_input_ids=int64[1, 128]", 3, marks=pytest.mark.slow),
        pytest.param(CLIP, "bfloat16", "pixel_values=bfloat16[1, 3, 32, 32]", 2, marks=pytest.mark.slow),
        pytest.param(
            *(CLIP_OF_PICTURES, "bfloat16", "pixel_values=bfloat16[1, 2, 3, 32, 32]", 2),
            marks=pytest.mark.slow,
        ),
        pytest.param(*(SOUND, "bfloat16", "input_features=bfloat16[1, 3000, 16]", 1), marks=pytest.mark.slow),
    ],
    ids=["llama", "t5", "clip", "timesformer", "parakeet"],
)
def test_transformers(config, dtype, inputs, count):
    pytest.importorskip("transformers")
    result = sites(written(config), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert f"{config['architectures'][0]} on the meta device in {dtype}, called with " in report["notes"][0]
    assert inputs in report["notes"][0]
    assert sum(site["kind"] == "sdpa" for site in report["sites"]) == count


@pytest.mark.slow
def test_a_folder_is_its_config():
    pytest.importorskip("diffusers")
    written(SANA, "sana/config.json")
    of_folder, of_config = (
        re.sub(r"\d+\.\d s\b", "T s", sites(target).stdout) for target in ("sana", "sana/config.json")
    )
    assert of_folder == of_config.replace("sana/config.json", "sana")


def test_dtype_and_inputs_are_the_users():
    pytest.importorskip("diffusers")
    shape = "hidden_states=fp32[2,4,16,16]"
    prompts = "encoder_hidden_states=f32[2,7,24]"
    options = ["--dtype", "fp32", "--json"]
    for given in (shape, "timestep=f32[2]", prompts):
        options += ["--input", given]
    result = sites(written(SANA), *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["sites"]
    prompt = next(s for s in found if s["module"] == "caption_projection.linear_1")
    assert prompt["operands"]["x"] == "float32[2, 7, 24]"


@pytest.mark.slow
def test_a_quantization_that_is_not_applied_is_told():
    pytest.importorskip("transformers")
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert (
        "quantization (fp8) is not applied" in json.loads(sites(written(config), "--json").stdout)["notes"][1]
    )


@pytest.mark.slow
def test_a_pipeline_has_each_component_by_name():
    pytest.importorskip("diffusers")
    written(
        {
            "_class_name": "SanaPipeline",
            "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
            "text_encoder": ["transformers", "LlamaModel"],
            "tokenizer": ["transformers", "GemmaTokenizer"],
            "transformer": ["diffusers", "SanaTransformer2DModel"],
            "odd": ["elsewhere", "Model"],
            "absent": [None, None],
        },
        "pipe/model_index.json",
    )
    written(SANA, "pipe/transformer/config.json")
    written(LLAMA, "pipe/text_encoder/config.json")
    written({}, "pipe/odd/config.json")
    result = sites("pipe", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {s["module"].split(".")[0] for s in report["sites"]} == {"text_encoder", "transformer"}
    assert len({s["id"] for s in report["sites"]}) == len(report["sites"])
    assert [n for n in report["notes"] if n.startswith("odd: ")] == [
        "odd: pipe/odd/config.json: models of 'elsewhere' are not known here: expected diffusers or transformers"
    ]
    assert sites("pipe/model_index.json").exit_code == 0
    by_module = sites("pipe", "--by", "module").stdout
    assert "text_encoder.layers.*: " in by_module.replace("text_encoder.model", "text_encoder")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([1], "is not a model's configuration: expected an object, got a list"),
        ({"a": 1}, "names no model: expected '_class_name' (diffusers) or 'model_type'"),
        ({"_class_name": "Absent"}, "has no class 'Absent': it may need a newer diffusers"),
        ({"_class_name": "SanaTransformer2D"}, "did you mean 'SanaTransformer2DModel'?"),
        ({**SANA, "num_layers": "two"}, "diffusers.SanaTransformer2DModel cannot be built: TypeError"),
        ({"model_type": "absent"}, "transformers.AutoModel cannot be built: "),
        ({"_class_name": "UVit2DModel"}, "nothing is known of input_ids, pooled_text_emb, micro_conds"),
    ],
)
def test_a_bad_config(config, said):
    pytest.importorskip("diffusers")
    fails(sites(written(config)), "config.json", said)


def test_a_file_that_is_not_json():
    Path("config.json").write_text("{")
    fails(sites("config.json"), "config.json is not JSON: Expecting property name", "line 1 column 2")


def test_no_such_file():
    fails(sites("absent/config.json"), "file 'absent/config.json' does not exist; the current folder is ")


def test_a_folder_without_a_model():
    Path("empty").mkdir()
    fails(
        sites("empty"), "folder 'empty' has neither config.json (a model) nor model_index.json", ".pt2 file"
    )


def test_a_pipeline_without_models():
    written({"_class_name": "Pipe", "scheduler": ["diffusers", "Scheduler"]}, "pipe/model_index.json")
    fails(sites("pipe"), "folder 'pipe' has no component with a config.json")


def test_a_component_without_a_folder():
    pytest.importorskip("diffusers")
    index = {"vae": ["diffusers", "AutoencoderKL"], "odd": ["elsewhere", "Model"], "none": [None, None]}
    written(index, "pipe/model_index.json")
    written({}, "pipe/odd/config.json")
    result = sites("pipe")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "vae: not looked at: model_index.json names it, and there is no folder 'pipe/vae'" in said
    assert "none:" not in said
    fails(CliRunner().invoke(main, ["verify", "pipe"]), "pipe: vae: not looked at")


def test_inputs_do_not_go_with_a_pipeline():
    written({"_class_name": "Pipe"}, "pipe/model_index.json")
    fails(
        sites("pipe", "--input", "x=f32[1]"),
        "--input x does not go with it",
        "name the folder of one of them",
    )


def test_an_input_that_the_model_has_not():
    pytest.importorskip("diffusers")
    fails(sites(written(SANA), "--input", "x=f32[1]"), "forward has no 'x': expected one of hidden_states, ")


def test_an_unknown_dtype():
    pytest.importorskip("diffusers")
    fails(sites(written(SANA), "--dtype", "bf17"), "config.json: dtype: unknown dtype 'bf17'")


def test_a_library_that_is_missing(monkeypatch):
    import importlib

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    fails(sites(written(SANA)), "config.json needs diffusers: ModuleNotFoundError", "pip install diffusers")


def test_a_configuration_that_may_not_be_read(monkeypatch):
    written(SANA)

    def denied(path, *_, **__):
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr(config, "open", denied, raising=False)  # root may read everything
    fails(sites("config.json"), "config.json cannot be read: Permission denied")


def test_a_configuration_that_is_not_text():
    Path("config.json").write_bytes(b"\xff\xfe{}")
    fails(sites("config.json"), "config.json is not JSON: ", "utf-8")


def test_a_folder_in_place_of_the_configuration():
    Path("some.json").mkdir()
    fails(sites("some.json"), "folder 'some.json' has neither config.json (a model) nor model_index.json")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", ["LlamaForCausalLM"]])
def test_what_the_fields_of_a_configuration_may_be(architecture):
    pytest.importorskip("transformers")
    odd = {**LLAMA, "architectures": architecture, "num_hidden_layers": 1, "quantization_config": "fp8"}
    result = sites(written(odd), "--json")
    assert result.exit_code == 0, result.output
    notes = json.loads(result.stdout)["notes"]
    assert notes[0].startswith("LlamaForCausalLM on the meta device")
    assert "quantization (unknown) is not applied" in notes[1]
