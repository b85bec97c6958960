"""The tensor table as Python sees it: Tessera's names, their natural shapes, and the names Hugging Face gives the same tensors."""

import re

import families

MODEL_KEYS = ("layers", "width", "heads", "kv_heads", "head_dim", "ff_width", "vocab", "norm_eps", "tied", "qk_norm", "qkv_bias",
              "rope_theta", "rope_scaling", "rope_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_context")


# Of a model whose attention has windows, or whose layers differ.
LAYER_KEYS = ("window", "positions", "pattern", "kinds")

# Of a model whose blocks are not a Llama's.
BLOCK_KEYS = ("norm_placement", "norm_form", "wide_qk_norm", "activation", "embedding_scale", "residual_scale", "attention_scale", "attention_softcap",
              "logit_scale", "logit_softcap", "head_bias", "rotary_fraction", "rope_pairs", "gate_limit", "attention_out_bias", "attention_sinks", "rope_truncate",
              "expert_bias", "gated", "mlp_bias", "rope_short_factors", "rope_long_factors", "learned_positions")

# Of a model with experts.
EXPERT_KEYS = ("experts", "experts_per_token", "expert_ff_width", "shared_ff_width", "normalize_top_k", "router_aux_loss", "router_z_loss")
# Of one whose experts are not a Mixtral's or a Qwen's.
MORE_EXPERT_KEYS = ("dense_layers", "shared_gate", "router_scores", "router_scale", "expert_groups", "groups_per_token", "router_balance", "router_bias_rate")


def layers_of(keys):
    """What differs from layer to layer, as the deck's pattern and kinds say it: window (0: none), positions, rotation and experts of each."""
    plain = {"window": keys.get("window", 0), "positions": keys.get("positions", "rope"), "rope_theta": keys.get("rope_theta"),
             "rope_scaling": keys.get("rope_scaling"), "experts": True}
    kinds = {kind["name"]: {**plain, **kind} for kind in keys.get("kinds", [])}
    pattern = keys.get("pattern", "")
    return [kinds[pattern[n % len(pattern)]] if pattern else plain for n in range(keys["layers"])]


def has_experts(keys):
    return keys.get("experts", 0) > 0


def dense_layers(keys):
    """Numbers of layers without experts."""
    return [n for n, layer in enumerate(layers_of(keys)) if not has_experts(keys) or n < keys.get("dense_layers", 0) or not layer["experts"]]


def is_cohere(keys):
    return keys.get("norm_placement") == "parallel"


def has_sigmoids(keys):
    return keys.get("router_scores") == "sigmoid"


def is_minimax(keys):
    return has_sigmoids(keys) and keys.get("wide_qk_norm", False)


def is_glm_moe(keys):
    """Or a dots.llm1, whose tensors have the same names."""
    return has_sigmoids(keys) and not is_minimax(keys)


def is_glm(keys):
    return keys.get("rope_pairs") == "neighbours" and not is_cohere(keys)


def is_gpt_oss(keys):
    return keys.get("attention_sinks", False)


def is_starcoder(keys):
    return keys.get("norm_form") == "layer_norm"


def is_apertus(keys):
    return keys["qk_norm"] and not keys.get("gated", True)


def is_phi3(keys):
    """As it is exported."""
    return keys.get("rope_scaling") == "longrope"


def is_gpt2(keys):
    return keys.get("learned_positions", 0) > 0


# What a GPT-2 calls what a StarCoder2 has.
GPT2_NAMES = (("model.embed_tokens", "transformer.wte"), ("model.layers.", "transformer.h."), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
              ("self_attn.q_proj", "attn.c_attn"), ("self_attn.k_proj", "attn.c_attn"), ("self_attn.v_proj", "attn.c_attn"), ("self_attn.o_proj", "attn.c_proj"),
              ("model.norm", "transformer.ln_f"))


def name_of_gpt2(name):
    for usual, theirs in GPT2_NAMES:
        name = name.replace(usual, theirs)
    return name


def gpt2_part(ours, keys):
    """The same of a GPT-2, whose matrices of products are turned, and whose queries, keys and values are one."""
    found = re.search(r"layers\.\d+\.\w+\.([wb])([qkvo]|_up|_down)$", ours)
    if not found:
        return None
    matrix, at, width = found[1] == "w", "qkv".find(found[2]), keys["width"]
    columns = slice(None) if at < 0 else slice(at * width, (at + 1) * width)
    return ((slice(None), columns) if matrix else (columns,)), matrix


def norms_input(keys):
    return keys.get("norm_placement", "pre") != "post"


def norms_output(keys):
    return keys.get("norm_placement", "pre") not in ("pre", "parallel")


def norms_mlp_input(keys):
    return norms_input(keys) and not is_cohere(keys)


def has_multipliers(keys):
    return "residual_scale" in keys


def is_granite4(keys):
    """As it is exported, where no layer has positions."""
    return has_multipliers(keys) and keys.get("positions") == "none"


def is_mixtral(keys):
    return (has_experts(keys) and keys["shared_ff_width"] == 0 and keys["normalize_top_k"] and not keys["qk_norm"] and not keys["qkv_bias"]
            and not has_multipliers(keys) and not is_gpt_oss(keys))


def expert_part(ours, keys):
    """Of a tensor of an expert of a GPT-OSS: what index of theirs it is, and whether it is turned there; else None."""
    if is_gpt2(keys):
        return gpt2_part(ours, keys)
    expert = re.search(r"experts\.(\d+)\.([wb])_(gate|up|down)$", ours)
    if not expert or not is_gpt_oss(keys):
        return None
    turn = {"gate": (slice(0, None, 2),), "up": (slice(1, None, 2),), "down": ()}[expert[3]]
    matrix = expert[2] == "w"
    return (int(expert[1]), *([slice(None)] if matrix and turn else []), *turn), matrix


def fused_rows(theirs, keys):
    """Of a matrix whose rows a Phi-3 has in a tensor with others: (that tensor, its first row, its last), or None."""
    query, key, ff = keys["heads"] * keys["head_dim"], keys["kv_heads"] * keys["head_dim"], keys["ff_width"]
    rows = {"q_proj": ("qkv_proj", 0, query), "k_proj": ("qkv_proj", query, query + key), "v_proj": ("qkv_proj", query + key, query + 2 * key),
            "gate_proj": ("gate_up_proj", 0, ff), "up_proj": ("gate_up_proj", ff, 2 * ff)}
    module = theirs.split(".")[-2] if theirs.endswith(".weight") else ""
    return (theirs.replace(module, rows[module][0]), *rows[module][1:]) if is_phi3(keys) and module in rows else None


def fused_table(keys):
    """[(Hugging Face name, shape)] of the files: of several experts' matrices in one tensor that tensor, once."""
    files = {}
    ff, width = keys.get("expert_ff_width"), keys["width"]
    turned = {"gate_up_proj": (width, 2 * ff), "down_proj": (ff, width), "gate_up_proj_bias": (2 * ff,), "down_proj_bias": (width,)} if is_gpt_oss(keys) else {}
    for ours, theirs, shape in tensor_table(keys):
        if rows := fused_rows(theirs, keys):
            files[rows[0]] = (rows[2], *shape[1:])  # of the last one all
            continue
        if is_gpt2(keys) and (part := gpt2_part(ours, keys)):
            files[theirs] = (*(shape[:0:-1] if part[1] else ()), shape[0] * (3 if "c_attn" in theirs else 1))
            continue
        if (last := theirs.rsplit(".", 1)[1]) in turned:
            files[theirs] = (keys["experts"], *turned[last])
            continue
        experts = keys["experts"] if theirs.endswith(("moe.input_linear.weight", "moe.output_linear.weight")) else 0
        rows = 2 * shape[0] if theirs.endswith("input_linear.weight") else shape[0]
        files[theirs] = (*((experts,) if experts else ()), rows, *shape[1:])
    if keys.get("activation") == "xielu":
        files |= {f"model.layers.{n}.mlp.act_fn.{constant}": () for n in range(keys["layers"]) for constant in ("beta", "eps")}
    return list(files.items())


def shared_mlp_table(ours, theirs, ff, width):
    return [(ours + "w_gate", theirs + "shared_mlp.input_linear.weight", (ff, width)), (ours + "w_up", theirs + "shared_mlp.input_linear.weight", (ff, width)),
            (ours + "w_down", theirs + "shared_mlp.output_linear.weight", (width, ff))] if ff else []


def expert_table(keys, n):
    """The rows of a layer's feed-forward part, where it has experts; names as checkpoints of transformers have them."""
    width, ff, shared = keys["width"], keys["expert_ff_width"], keys["shared_ff_width"]
    ours, theirs = f"layers.{n}.moe.", f"model.layers.{n}."
    if has_multipliers(keys):
        granite = theirs + "block_sparse_moe."
        pairs = [(f"{ours}experts.{e}.{part}", granite + "input_linear.weight", (ff, width)) for e in range(keys["experts"]) for part in ("w_gate", "w_up")]
        return [(ours + "norm", theirs + "post_attention_layernorm.weight", (width,)),
                (ours + "router", granite + "router.layer.weight", (keys["experts"], width)), *pairs,
                *shared_mlp_table(ours + "shared.", theirs, shared, width),
                *((f"{ours}experts.{e}.w_down", granite + "output_linear.weight", (width, ff)) for e in range(keys["experts"]))]
    if is_gpt_oss(keys):
        mlp = theirs + "mlp."
        every = range(keys["experts"])
        return [(ours + "norm", theirs + "post_attention_layernorm.weight", (width,)),
                (ours + "router", mlp + "router.weight", (keys["experts"], width)), (ours + "b_router", mlp + "router.bias", (keys["experts"],)),
                *((f"{ours}experts.{e}.w_{part}", mlp + "experts.gate_up_proj", (ff, width)) for e in every for part in ("gate", "up")),
                *((f"{ours}experts.{e}.w_down", mlp + "experts.down_proj", (width, ff)) for e in every),
                *((f"{ours}experts.{e}.b_{part}", mlp + "experts.gate_up_proj_bias", (ff,)) for e in every for part in ("gate", "up")),
                *((f"{ours}experts.{e}.b_down", mlp + "experts.down_proj_bias", (width,)) for e in every)]
    router, expert, gate, up, down = (("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2") if is_mixtral(keys) or is_minimax(keys) else
                                      ("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"))
    rows = [(ours + "norm", theirs + "post_attention_layernorm.weight", (width,)),
            (ours + "router", f"{theirs}{router}.weight", (keys["experts"], width))]
    if is_minimax(keys):
        rows += [(ours + "router_bias", theirs + "block_sparse_moe.e_score_correction_bias", (keys["experts"],))]
    elif shared and is_glm_moe(keys):
        rows += [(f"{ours}shared.w_{part}", f"{theirs}mlp.shared_experts.{part}_proj.weight", shape)
                 for part, shape in (("gate", (shared, width)), ("up", (shared, width)), ("down", (width, shared)))]
        rows += [(ours + "router_bias", theirs + "mlp.gate.e_score_correction_bias", (keys["experts"],))]
    elif shared:
        rows += [(ours + "shared_gate", theirs + "mlp.shared_expert_gate.weight", (1, width)),
                 (ours + "shared.w_gate", theirs + "mlp.shared_expert.gate_proj.weight", (shared, width)),
                 (ours + "shared.w_up", theirs + "mlp.shared_expert.up_proj.weight", (shared, width)),
                 (ours + "shared.w_down", theirs + "mlp.shared_expert.down_proj.weight", (width, shared))]
    for e in range(keys["experts"]):
        rows += [(f"{ours}experts.{e}.w_gate", f"{theirs}{expert}.{e}.{gate}.weight", (ff, width)),
                 (f"{ours}experts.{e}.w_up", f"{theirs}{expert}.{e}.{up}.weight", (ff, width))]
    return rows + [(f"{ours}experts.{e}.w_down", f"{theirs}{expert}.{e}.{down}.weight", (width, ff)) for e in range(keys["experts"])]


def tensor_table(keys):
    """[(our name, Hugging Face name, shape)] in the order of the model: embedding, layers, head."""
    width, ff, dim = keys["width"], keys["ff_width"], keys["head_dim"]
    query, key_value = keys["heads"] * dim, keys["kv_heads"] * dim
    rows = [("embedding.weight", "model.embed_tokens.weight", (keys["vocab"], width))]
    for n in range(keys["layers"]):
        ours, theirs = f"layers.{n}.", f"model.layers.{n}."
        if norms_input(keys):
            rows.append((ours + "attention.norm", theirs + ("attention_layernorm" if is_apertus(keys) else "input_layernorm") + ".weight", (width,)))
            if is_starcoder(keys):
                rows.append((ours + "attention.norm_bias", theirs + "input_layernorm.bias", (width,)))
        rows += [
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
        if keys.get("attention_out_bias"):
            rows.append((ours + "attention.bo", theirs + "self_attn.o_proj.bias", (width,)))
        if is_gpt_oss(keys):
            rows.append((ours + "attention.sinks", theirs + "self_attn.sinks", (keys["heads"],)))
        if keys["qk_norm"]:
            wide = keys.get("wide_qk_norm", False)
            rows += [
                (ours + "attention.q_norm", theirs + "self_attn.q_norm.weight", (query if wide else dim,)),
                (ours + "attention.k_norm", theirs + "self_attn.k_norm.weight", (key_value if wide else dim,)),
            ]
        if norms_output(keys):
            rows.append((ours + "attention.post_norm", theirs + ("post_self_attn_layernorm" if is_glm(keys) else "post_attention_layernorm") + ".weight", (width,)))
        if n not in dense_layers(keys):
            rows += expert_table(keys, n)
            continue
        if norms_mlp_input(keys):
            before = "feedforward_layernorm" if is_apertus(keys) else "pre_feedforward_layernorm" if norms_output(keys) and not is_glm(keys) else "post_attention_layernorm"
            rows.append((ours + "mlp.norm", f"{theirs}{before}.weight", (width,)))
            if is_starcoder(keys):
                rows.append((ours + "mlp.norm_bias", f"{theirs}{before}.bias", (width,)))
        if is_granite4(keys):
            rows += shared_mlp_table(ours + "mlp.", theirs, ff, width)
            continue
        if is_starcoder(keys):
            rows += [(ours + "mlp.w_up", theirs + "mlp.c_fc.weight", (ff, width)), (ours + "mlp.w_down", theirs + "mlp.c_proj.weight", (width, ff))]
            if keys.get("mlp_bias"):
                rows += [(ours + "mlp.b_up", theirs + "mlp.c_fc.bias", (ff,)), (ours + "mlp.b_down", theirs + "mlp.c_proj.bias", (width,))]
            continue
        parts = [("gate", (ff, width)), ("up", (ff, width)), ("down", (width, ff))][0 if keys.get("gated", True) else 1:]
        rows += [(f"{ours}mlp.w_{part}", f"{theirs}mlp.{part}_proj.weight", shape) for part, shape in parts]
        if keys.get("mlp_bias"):
            rows += [(f"{ours}mlp.b_{part}", f"{theirs}mlp.{part}_proj.bias", shape[:1]) for part, shape in parts]
        if keys.get("activation") == "xielu":
            rows += [(f"{ours}mlp.alpha_{side}", f"{theirs}mlp.act_fn.alpha_{side}", (1,)) for side in "pn"]
        if norms_output(keys):
            rows.append((ours + "mlp.post_norm", theirs + ("post_mlp_layernorm" if is_glm(keys) else "post_feedforward_layernorm") + ".weight", (width,)))
    rows.append(("head.norm", "model.norm.weight", (width,)))
    if is_starcoder(keys):
        rows.append(("head.norm_bias", "model.norm.bias", (width,)))
    if not keys["tied"]:
        rows.append(("head.weight", "lm_head.weight", (keys["vocab"], width)))
    if keys.get("head_bias"):
        rows.append(("head.bias", "lm_head.bias", (keys["vocab"],)))
    if family := families.of(keys):
        rows = [(ours, family.name(theirs), shape) for ours, theirs, shape in rows]
    if is_gpt2(keys):
        rows = [(ours, name_of_gpt2(theirs), shape) for ours, theirs, shape in rows]
        rows.insert(1, ("embedding.positions", "transformer.wpe.weight", (keys["learned_positions"], width)))
    return rows


def toml_of(value):
    if isinstance(value, list):
        return f"[{', '.join(toml_of(part) for part in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_of(part)}" for key, part in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def model_toml(keys):
    """The [model] section of a deck with these keys."""
    lines = ["[model]"]
    of_layers = tuple(key for key in LAYER_KEYS + BLOCK_KEYS if key in keys)
    of_experts = EXPERT_KEYS + tuple(key for key in MORE_EXPERT_KEYS if key in keys) if has_experts(keys) else ()
    for key in MODEL_KEYS + of_layers + of_experts:
        lines.append(f"{key} = {toml_of(keys[key])}")
    return "\n".join(lines) + "\n"
