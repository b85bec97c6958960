"""Phi-1, 1.5 and 2: attention beside a feed-forward block behind one LayerNorm, biases of all products."""

TITLE, NOTES = "Phi-1, Phi-1.5, Phi-2", "without `qk_layernorm`; its dropout is told of and left out"
# All of a head is rotated: what is not of a key's bias has no gradient but rounding, which AdamW makes as large as others.
KEYS = {"kv_heads": 2, "vocab": 64, "qkv_bias": True, "attention_out_bias": True, "mlp_bias": True, "head_bias": True, "gated": False,
        "norm_placement": "parallel", "norm_form": "layer_norm", "activation": "gelu_tanh", "rotary_fraction": 1.0, "class": "phi"}
MODELS = {"phi": ({"rotary_fraction": 0.5}, ("float32", "bfloat16")), "phi_whole": ({}, ("bfloat16",))}
NAMES = (("self_attn.o_proj", "self_attn.dense"), ("mlp.c_fc", "mlp.fc1"), ("mlp.c_proj", "mlp.fc2"), ("model.norm", "model.final_layernorm"))


def config(keys, common, rope):
    import transformers
    common = {key: value for key, value in common.items() if key not in ("rms_norm_eps", "head_dim")}
    return transformers.PhiConfig(**{**common, "rope_parameters": {**rope, "partial_rotary_factor": keys["rotary_fraction"]}}, layer_norm_eps=keys["norm_eps"],
                                  bos_token_id=None, eos_token_id=None)


def name(usual):
    for others, theirs in NAMES:
        usual = usual.replace(others, theirs)
    return usual


def read(_):
    return {key: KEYS[key] for key in ("qkv_bias", "attention_out_bias", "mlp_bias", "head_bias", "gated", "norm_placement", "norm_form")}
