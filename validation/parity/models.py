"""Model shapes of the fixtures, and the Hugging Face model of each (needs torch and transformers)."""

import torch
import transformers

from names import tensor_table

DEFAULTS = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 4, "head_dim": 8, "ff_width": 48, "vocab": 96, "norm_eps": 1e-5, "tied": False,
            "qk_norm": False, "qkv_bias": False, "rope_theta": 10000.0, "rope_scaling": "none", "rope_factor": 8.0,
            "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "rope_original_context": 8192}

# name: (seed, T, standard deviations of embedding and head, keys that differ from DEFAULTS)
SHAPES = {
    "untied": (1, 24, (0.3, 0.3), {}),
    "tied": (2, 16, (0.3, 0.3), {"tied": True, "ff_width": 64}),
    "gqa4": (3, 24, (0.3, 0.3), {"heads": 8, "kv_heads": 2}),
    "gqa7_dim48": (4, 20, (0.3, 0.3), {"width": 28, "heads": 7, "kv_heads": 1, "head_dim": 48, "vocab": 64, "layers": 1, "tied": True}),
    "odd": (5, 19, (0.3, 0.3), {"vocab": 1013, "width": 24, "head_dim": 6, "tied": True, "layers": 1}),
    # Small logits keep the gradient norm under 1: clipping must then leave the gradients of the ten steps alone.
    "odd_untied": (6, 31, (1.0, 0.02), {"vocab": 211, "ff_width": 37, "width": 24, "heads": 3, "kv_heads": 3, "head_dim": 10}),
    # Wave lengths at head dim 16: 6.3 (kept), 19.9 (blended), 62.8 and longer (stretched): all three branches of the Llama-3 rule.
    "rope_llama3": (7, 48, (0.3, 0.3), {"heads": 2, "kv_heads": 1, "head_dim": 16, "rope_scaling": "llama3", "rope_original_context": 32}),
    "qk_norm": (8, 21, (0.3, 0.3), {"kv_heads": 2, "head_dim": 12, "qk_norm": True, "norm_eps": 1e-6, "rope_theta": 1000000.0, "tied": True}),
    "qkv_bias": (9, 17, (0.3, 0.3), {"kv_heads": 2, "qkv_bias": True, "norm_eps": 1e-6, "rope_theta": 1000000.0, "vocab": 131}),
}


def model_keys(name):
    return {**DEFAULTS, **SHAPES[name][3]}


def make_config(keys):
    """The transformers configuration that computes what a deck with these keys computes."""
    rope = {"rope_type": "default", "rope_theta": keys["rope_theta"]}
    if keys["rope_scaling"] == "llama3":
        rope = {"rope_type": "llama3", "rope_theta": keys["rope_theta"], "factor": keys["rope_factor"],
                "low_freq_factor": keys["rope_low_freq_factor"], "high_freq_factor": keys["rope_high_freq_factor"],
                "original_max_position_embeddings": keys["rope_original_context"]}
    common = dict(hidden_size=keys["width"], num_hidden_layers=keys["layers"], num_attention_heads=keys["heads"],
                  num_key_value_heads=keys["kv_heads"], head_dim=keys["head_dim"], intermediate_size=keys["ff_width"],
                  vocab_size=keys["vocab"], rms_norm_eps=keys["norm_eps"], tie_word_embeddings=keys["tied"], rope_parameters=rope,
                  max_position_embeddings=8192, hidden_act="silu", attention_dropout=0.0)
    if keys["qk_norm"]:
        return transformers.Qwen3Config(**common, attention_bias=keys["qkv_bias"])
    if keys["qkv_bias"]:
        return transformers.Qwen2Config(**common)
    if keys["width"] % keys["heads"]:
        return transformers.MistralConfig(**common, sliding_window=None)
    return transformers.LlamaConfig(**common, attention_bias=False, mlp_bias=False)


def make_model(keys):
    config = make_config(keys)
    config._attn_implementation = "eager"
    kind = {"llama": transformers.LlamaForCausalLM, "mistral": transformers.MistralForCausalLM,
            "qwen2": transformers.Qwen2ForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}
    model = kind[config.model_type](config).to(torch.float32).train()
    if model.config._attn_implementation != "eager":
        raise SystemExit(f"transformers chose the attention {model.config._attn_implementation}; the fixtures need eager")
    return model


def our_parameters(model, keys):
    """Our name -> torch parameter, with every name and shape checked both ways."""
    theirs = dict(model.named_parameters())
    ours = {}
    for name, hf_name, shape in tensor_table(keys):
        if hf_name not in theirs:
            raise SystemExit(f"transformers has no tensor {hf_name} (ours: {name})")
        if tuple(theirs[hf_name].shape) != shape:
            raise SystemExit(f"{hf_name} is {tuple(theirs[hf_name].shape)} in transformers, {name} is {shape} here")
        ours[name] = theirs.pop(hf_name)
    if theirs:
        raise SystemExit(f"transformers has tensors that the table lacks: {', '.join(theirs)}")
    return ours
