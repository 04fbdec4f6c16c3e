"""Language and speech models of transformers, with fused ("sdpa") and hand-written ("eager") attention."""

import torch

from tests.support.modules import noise, tokens

from . import MODELS

BF16 = torch.bfloat16


def transformers_model(config: str, model: str, attention: str, dtype: torch.dtype, **settings):
    import transformers

    configuration = getattr(transformers, config)(**settings)
    return getattr(transformers, model)._from_config(configuration, attn_implementation=attention).to(dtype)


DECODER = {
    "vocab_size": 120,
    "hidden_size": 96,
    "intermediate_size": 144,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "head_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def left_padded(batch: int, length: int, pad: int) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, :pad] = 0
    return mask


def decoder(family: str, attention: str, dtype=BF16, padded=False, **settings):
    name = f"{family}Config" if family != "Gemma3" else "Gemma3TextConfig"
    model = transformers_model(name, f"{family}ForCausalLM", attention, dtype, **{**DECODER, **settings})
    kwargs = {"input_ids": tokens(2, 11), "use_cache": False}
    if padded:
        kwargs["attention_mask"] = left_padded(2, 11, 4)
    return model, (), kwargs


# a layer: q, k, v, o, gate, up, down = 7; and the head
@MODELS.add("llama", needs="transformers", quick=True, fused=2, linear=15)
def _():
    return decoder("Llama", "sdpa")


@MODELS.add("llama-eager", needs="transformers", quick=True, manual=2, linear=15)
def _():
    return decoder("Llama", "eager", padded=True)


@MODELS.add("llama-padded-fp32", needs="transformers", fused=2, linear=15)
def _():
    return decoder("Llama", "sdpa", torch.float32, padded=True)


@MODELS.add("mistral-window", needs="transformers", fused=2, linear=15)
def _():
    return decoder("Mistral", "sdpa", sliding_window=5)


@MODELS.add("qwen3", needs="transformers", fused=2, linear=15)
def _():
    return decoder("Qwen3", "sdpa", padded=True)


@MODELS.add("gemma2-softcap", needs="transformers", manual=2, linear=15)
def _():
    return decoder("Gemma2", "eager", query_pre_attn_scalar=32, sliding_window=5)


@MODELS.add("gemma3-window", needs="transformers", fused=2, linear=15)
def _():
    return decoder("Gemma3", "sdpa", query_pre_attn_scalar=32, sliding_window=5)


@MODELS.add("llama-decode", needs="transformers", fused=2, linear=15)
def _():
    from transformers import DynamicCache

    model, _, _ = decoder("Llama", "sdpa")
    cache = DynamicCache(config=model.config)
    for layer in range(2):
        key, value = (noise(1, 1, 6, 32, seed=10 * layer + i, dtype=BF16) for i in range(2))
        cache.update(key, value, layer)
    kwargs = {
        "input_ids": tokens(1, 1),
        "past_key_values": cache,
        "position_ids": torch.tensor([[6]]),
        "use_cache": True,
    }
    return model, (), kwargs


# Conv1D layers are addmm; F.linear is only the head
@MODELS.add("gpt2", needs="transformers", quick=True, fused=2, linear=1)
def _():
    model = transformers_model(
        "GPT2Config",
        "GPT2LMHeadModel",
        "sdpa",
        BF16,
        vocab_size=120,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return model, (), {"input_ids": tokens(2, 9), "use_cache": False}


@MODELS.add("opt", needs="transformers", fused=2, linear=13)
def _():
    model = transformers_model(
        "OPTConfig",
        "OPTForCausalLM",
        "sdpa",
        BF16,
        vocab_size=120,
        hidden_size=64,
        num_hidden_layers=2,
        ffn_dim=96,
        num_attention_heads=2,
        max_position_embeddings=32,
        word_embed_proj_dim=64,
        pad_token_id=1,
    )
    return model, (), {"input_ids": tokens(2, 9), "attention_mask": left_padded(2, 9, 3), "use_cache": False}


def bert(attention: str):
    return transformers_model(
        "BertConfig",
        "BertModel",
        attention,
        torch.float32,
        vocab_size=120,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=32,
    )


# a layer: q, k, v, o and 2 of the feed-forward; and the pooler
@MODELS.add("bert", needs="transformers", quick=True, fused=2, linear=13)
def _():
    return bert("sdpa"), (), {"input_ids": tokens(2, 9)}


@MODELS.add("bert-eager-padded", needs="transformers", manual=2, linear=13)
def _():
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    return bert("eager"), (), {"input_ids": tokens(2, 9), "attention_mask": mask}


# encoder: 6 a layer; decoder: 10 a layer
@MODELS.add("t5", needs="transformers", manual=3, linear=16)
def _():
    model = transformers_model(
        "T5Config",
        "T5Model",
        "eager",
        torch.float32,
        vocab_size=120,
        d_model=64,
        d_kv=16,
        d_ff=96,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
    )
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    kwargs = {
        "input_ids": tokens(2, 8),
        "attention_mask": mask,
        "decoder_input_ids": tokens(2, 4),
        "use_cache": False,
    }
    return model, (), kwargs


@MODELS.add("whisper", needs="transformers", fused=3, linear=16)
def _():
    model = transformers_model(
        "WhisperConfig",
        "WhisperModel",
        "sdpa",
        torch.float32,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        vocab_size=120,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=12,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    kwargs = {
        "input_features": noise(1, 8, 32, seed=1),
        "decoder_input_ids": tokens(1, 5),
        "use_cache": False,
    }
    return model, (), kwargs
