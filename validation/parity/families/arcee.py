"""Arcee's AFM: a Llama whose feed-forward blocks have no gate."""

TITLE, NOTES = "Arcee AFM", "`attention_bias`, `mlp_bias`"
KEYS = {"kv_heads": 2, "vocab": 64, "gated": False, "activation": "relu_squared", "class": "arcee"}
MODELS = {"arcee": ({}, ("float32", "bfloat16")), "arcee_biases": ({"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True, "tied": True}, ("bfloat16",))}


def config(keys, common, _):
    import transformers
    return transformers.ArceeConfig(**common, attention_bias=keys["qkv_bias"], mlp_bias=keys.get("mlp_bias", False))


def name(usual):
    return usual


def read(config):
    return {"gated": False, "attention_out_bias": config["attention_bias"], "mlp_bias": config["mlp_bias"]}
