"""The tensor table as Python sees it: Tessera's names, their natural shapes, and the names Hugging Face gives the same tensors."""

MODEL_KEYS = ("layers", "width", "heads", "kv_heads", "head_dim", "ff_width", "vocab", "norm_eps", "tied", "qk_norm", "qkv_bias",
              "rope_theta", "rope_scaling", "rope_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_context")


def tensor_table(keys):
    """[(our name, Hugging Face name, shape)] in the order of the model: embedding, layers, head."""
    width, ff, dim = keys["width"], keys["ff_width"], keys["head_dim"]
    query, key_value = keys["heads"] * dim, keys["kv_heads"] * dim
    rows = [("embedding.weight", "model.embed_tokens.weight", (keys["vocab"], width))]
    for n in range(keys["layers"]):
        ours, theirs = f"layers.{n}.", f"model.layers.{n}."
        rows += [
            (ours + "attention.norm", theirs + "input_layernorm.weight", (width,)),
            (ours + "attention.wq", theirs + "self_attn.q_proj.weight", (query, width)),
            (ours + "attention.wk", theirs + "self_attn.k_proj.weight", (key_value, width)),
            (ours + "attention.wv", theirs + "self_attn.v_proj.weight", (key_value, width)),
            (ours + "attention.wo", theirs + "self_attn.o_proj.weight", (width, query)),
        ]
        if keys["qkv_bias"]:
            rows += [
                (ours + "attention.bq", theirs + "self_attn.q_proj.bias", (query,)),
                (ours + "attention.bk", theirs + "self_attn.k_proj.bias", (key_value,)),
                (ours + "attention.bv", theirs + "self_attn.v_proj.bias", (key_value,)),
            ]
        if keys["qk_norm"]:
            rows += [
                (ours + "attention.q_norm", theirs + "self_attn.q_norm.weight", (dim,)),
                (ours + "attention.k_norm", theirs + "self_attn.k_norm.weight", (dim,)),
            ]
        rows += [
            (ours + "mlp.norm", theirs + "post_attention_layernorm.weight", (width,)),
            (ours + "mlp.w_gate", theirs + "mlp.gate_proj.weight", (ff, width)),
            (ours + "mlp.w_up", theirs + "mlp.up_proj.weight", (ff, width)),
            (ours + "mlp.w_down", theirs + "mlp.down_proj.weight", (width, ff)),
        ]
    rows.append(("head.norm", "model.norm.weight", (width,)))
    if not keys["tied"]:
        rows.append(("head.weight", "lm_head.weight", (keys["vocab"], width)))
    return rows


def model_toml(keys):
    """The [model] section of a deck with these keys."""
    lines = ["[model]"]
    for key in MODEL_KEYS:
        value = keys[key]
        text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
        lines.append(f"{key} = {text}")
    return "\n".join(lines) + "\n"
