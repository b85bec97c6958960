"""Model shapes of the fixtures, and the Hugging Face model of each (needs torch and transformers)."""

import re

import torch
import transformers

import families
from names import BLOCK_KEYS, expert_part, is_apertus, is_glm, is_gpt2, is_phi3, is_cohere, is_gpt_oss, is_glm_moe, is_minimax, has_sigmoids, is_granite4, is_starcoder, has_experts, dense_layers, is_mixtral, layers_of, norms_input, norms_output, tensor_table

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
    # Both losses of the router, and weights that are normalized.
    "mixtral": (15, 20, (0.3, 0.3), {"kv_heads": 2, "ff_width": 24, "vocab": 64, "experts": 4, "experts_per_token": 2, "expert_ff_width": 24,
                                     "shared_ff_width": 0, "normalize_top_k": True, "router_aux_loss": 0.05, "router_z_loss": 0.01}),
    "qwen_moe": (38, 18, (0.3, 0.3), {"kv_heads": 2, "qkv_bias": True, "norm_eps": 1e-6, "vocab": 64, "experts": 6, "experts_per_token": 2,
                                      "expert_ff_width": 16, "shared_ff_width": 40, "normalize_top_k": False, "router_aux_loss": 0.05,
                                      "router_z_loss": 0.0}),
    # A window on all layers, on some, and layers without positions.
    "window": (10, 24, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "window": 7}),
    "windows": (11, 24, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "layers": 3, "qk_norm": True, "norm_eps": 1e-6, "pattern": "LG",
                                     "kinds": [{"name": "L", "window": 5}, {"name": "G"}]}),
    # A token that sees itself alone in three of five layers; and a window that is longer than the sequence. Head dims of their own, one kv head.
    "window_one": (41, 20, (0.3, 0.3), {"width": 24, "ff_width": 24, "heads": 2, "kv_heads": 1, "head_dim": 80, "vocab": 64, "layers": 5, "qk_norm": True, "norm_eps": 1e-6, "pattern": "LG",
                                        "kinds": [{"name": "L", "window": 1}, {"name": "G"}]}),
    "window_long": (42, 20, (0.3, 0.3), {"width": 16, "ff_width": 24, "heads": 2, "kv_heads": 1, "head_dim": 96, "vocab": 64, "layers": 1, "window": 33}),
    "no_rope": (14, 20, (0.3, 0.3), {"kv_heads": 1, "vocab": 64, "layers": 3, "tied": True, "pattern": "GN",
                                     "kinds": [{"name": "G"}, {"name": "N", "positions": "none"}]}),
    # Norms before and after blocks, by 1 + w; caps; a scale of queries that is not their head's.
    "gemma2": (18, 20, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "tied": True, "norm_eps": 1e-6, "norm_placement": "both", "norm_form": "one_plus_weight",
                                    "activation": "gelu_tanh", "embedding_scale": "sqrt_width", "attention_scale": 0.25, "attention_softcap": 3.0,
                                    "logit_softcap": 2.0, "pattern": "LG", "kinds": [{"name": "L", "window": 6}, {"name": "G"}]}),
    # Two rotations, the one of layers that see all scaled.
    "gemma3": (24, 20, (0.3, 0.3), {"kv_heads": 1, "vocab": 64, "tied": True, "layers": 3, "norm_eps": 1e-6, "qk_norm": True, "norm_placement": "both",
                                    "norm_form": "one_plus_weight", "activation": "gelu_tanh", "embedding_scale": "sqrt_width", "rope_theta": 1e6,
                                    "rope_scaling": "linear", "rope_factor": 8.0, "pattern": "LLG",
                                    "kinds": [{"name": "L", "window": 6, "rope_theta": 10000.0, "rope_scaling": "none"}, {"name": "G"}]}),
    # Norms after blocks, of queries and keys over the whole width.
    "olmo3": (25, 20, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "layers": 3, "qk_norm": True, "wide_qk_norm": True, "norm_placement": "post",
                                   "rope_theta": 5e5, "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_context": 8, "pattern": "LG",
                                   "kinds": [{"name": "L", "window": 6, "rope_scaling": "none"}, {"name": "G"}]}),
    "granite": (22, 20, (0.1, 0.3), {"kv_heads": 2, "vocab": 64, "tied": True, "activation": "gelu", "embedding_scale": 3.0, "residual_scale": 0.5,
                                     "attention_scale": 0.2, "logit_scale": 0.5}),
    # Sinks, a clamped SwiGLU whose limit is often met, biases everywhere, and a rotation that is slowed between pairs.
    "gpt_oss": (154, 16, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "qkv_bias": True, "attention_out_bias": True, "attention_sinks": True,
                                     "activation": "clamped_silu", "gate_limit": 2.0, "ff_width": 16, "experts": 4, "experts_per_token": 2,
                                     "expert_ff_width": 16, "shared_ff_width": 0, "normalize_top_k": True, "expert_bias": True, "router_aux_loss": 0.05,
                                     "router_z_loss": 0.0, "rope_theta": 150000.0, "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_context": 8,
                                     "rope_truncate": False, "pattern": "LG", "kinds": [{"name": "L", "window": 6}, {"name": "G"}]}),
    # A first layer without experts; experts by sigmoids and biases, of groups that are chosen first; shared ones without a gate.
    "glm4_moe": (35, 16, (0.3, 0.3), {"layers": 2, "kv_heads": 2, "vocab": 64, "qk_norm": True, "qkv_bias": True, "rotary_fraction": 0.5, "experts": 8,
                                      "experts_per_token": 2, "expert_ff_width": 12, "shared_ff_width": 24, "shared_gate": False, "dense_layers": 1,
                                      "normalize_top_k": True, "router_scores": "sigmoid", "router_scale": 2.5, "expert_groups": 4, "groups_per_token": 2,
                                      "router_balance": "bias", "router_bias_rate": 0.0, "router_aux_loss": 0.05, "router_z_loss": 0.01}),
    # Experts by sigmoids and biases; norms of queries and keys over all heads, of which a part is rotated.
    "minimax_m2": (40, 18, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "layers": 1, "norm_eps": 1e-6, "qk_norm": True, "wide_qk_norm": True, "rotary_fraction": 0.5,
                                        "ff_width": 12, "experts": 6, "experts_per_token": 2, "expert_ff_width": 12, "shared_ff_width": 0,
                                        "normalize_top_k": True, "router_scores": "sigmoid", "router_balance": "bias", "router_bias_rate": 0.0,
                                        "router_aux_loss": 0.05, "router_z_loss": 0.01}),
    # An expert of all tokens beside the others, without a gate, in a stream of scaled parts, and no positions.
    "granite4": (37, 18, (0.1, 0.3), {"kv_heads": 2, "vocab": 64, "layers": 1, "tied": True, "ff_width": 12, "experts": 4, "experts_per_token": 2,
                                      "expert_ff_width": 12, "shared_ff_width": 20, "shared_gate": False, "normalize_top_k": True, "router_aux_loss": 0.05,
                                      "router_z_loss": 0.01, "positions": "none", "embedding_scale": 3.0, "residual_scale": 0.5, "attention_scale": 0.2,
                                      "logit_scale": 0.5}),
    # LayerNorm, no gate, biases everywhere.
    "starcoder2": (32, 18, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "tied": True, "qkv_bias": True, "attention_out_bias": True, "mlp_bias": True, "gated": False,
                                        "norm_form": "layer_norm", "activation": "gelu_tanh", "window": 7}),
    "apertus": (33, 18, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "qk_norm": True, "gated": False, "activation": "xielu", "rope_theta": 12e6, "rope_scaling": "llama3",
                                     "rope_factor": 8.0, "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "rope_original_context": 64}),
    "phi3_long": (34, 18, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "layers": 1, "tied": True, "rotary_fraction": 0.5, "rope_scaling": "longrope", "rope_factor": 8.0,
                                       "rope_original_context": 4, "rope_short_factors": [1.0, 1.25], "rope_long_factors": [1.5, 3.75]}),
    # Learned positions, more than the sequences have, and no rotation.
    "gpt2": (33, 18, (0.3, 0.3), {"vocab": 64, "ff_width": 96, "tied": True, "qkv_bias": True, "attention_out_bias": True, "mlp_bias": True, "gated": False,
                                  "norm_form": "layer_norm", "activation": "gelu_tanh", "positions": "none", "learned_positions": 40}),
    # Side by side, LayerNorm without biases, turns of neighbours, and layers that see all keys without a rotation.
    "cohere2": (36, 18, (0.3, 0.3), {"kv_heads": 2, "vocab": 64, "layers": 3, "tied": True, "norm_placement": "parallel", "norm_form": "layer_norm_no_bias",
                                     "rope_pairs": "neighbours", "logit_scale": 0.5, "pattern": "LG",
                                     "kinds": [{"name": "L", "window": 6}, {"name": "G", "positions": "none"}]}),
    "qkv_bias": (9, 17, (0.3, 0.3), {"kv_heads": 2, "qkv_bias": True, "norm_eps": 1e-6, "rope_theta": 1000000.0, "vocab": 131}),
}


# Of models without a fixture.
OTHERS = {
    "granitemoe": {"kv_heads": 2, "vocab": 64, "tied": True, "ff_width": 16, "experts": 6, "experts_per_token": 2, "expert_ff_width": 16,
                   "shared_ff_width": 0, "normalize_top_k": True, "embedding_scale": 3.0, "residual_scale": 0.5, "attention_scale": 8**-0.5,
                   "logit_scale": 0.5},
    "granite4_dense": {"kv_heads": 2, "vocab": 64, "tied": True, "positions": "none", "embedding_scale": 3.0, "residual_scale": 0.5, "attention_scale": 0.2,
                       "logit_scale": 0.5},
}
OTHERS["qwen_sparse"] = {"kv_heads": 2, "vocab": 64, "layers": 3, "qk_norm": True, "experts": 4, "experts_per_token": 2, "expert_ff_width": 16, "shared_ff_width": 0,
                         "normalize_top_k": True, "router_aux_loss": 0.05, "router_z_loss": 0.0, "pattern": "DG",
                         "kinds": [{"name": "D", "experts": False}, {"name": "G"}], "class": "step of 2"}
OTHERS["dots1"] = {"kv_heads": 2, "vocab": 64, "layers": 3, "qk_norm": True, "experts": 4, "experts_per_token": 2, "expert_ff_width": 12, "shared_ff_width": 24,
                   "shared_gate": False, "dense_layers": 1, "normalize_top_k": True, "router_scores": "sigmoid", "router_scale": 2.5, "router_balance": "bias",
                   "router_bias_rate": 0.0, "router_aux_loss": 0.05, "router_z_loss": 0.0, "norm_placement": "pre", "pattern": "GGL",
                   "kinds": [{"name": "G"}, {"name": "L", "window": 6}]}
OTHERS["granitemoeshared"] = {**OTHERS["granitemoe"], "shared_ff_width": 20, "shared_gate": False}


# A bias of the head, beside blocks of which no other fixture has all.
SHAPES["phi"] = (43, 18, (0.3, 0.3), families.ALL["phi"].KEYS)


def model_keys(name):
    return {**DEFAULTS, **(OTHERS[name] if name in OTHERS else SHAPES[name][3])}


TYPES_OF_ACTIVATIONS = {"silu": "silu", "clamped_silu": "silu", "relu_squared": "relu2", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "xielu": "xielu"}


def block_config(keys, common, layers, rope):
    """Of a model whose blocks are not a Llama's. A row of the embedding that is a padding token's would have no gradient."""
    common = dict(common, pad_token_id=None)
    act = common["hidden_act"]
    windows = [layer["window"] for layer in layers if layer["window"]]
    types = ["sliding_attention" if layer["window"] else "full_attention" for layer in layers]
    sliding = dict(sliding_window=windows[0] if windows else None, layer_types=types)
    local = [{"rope_type": "default", "rope_theta": layer["rope_theta"]} for layer in layers if layer["window"]]
    by_type = {"full_attention": rope, "sliding_attention": local[0] if local else {"rope_type": "default", "rope_theta": keys["rope_theta"]}}
    if is_minimax(keys):
        return transformers.MiniMaxM2Config(
            **{**common, "intermediate_size": keys["expert_ff_width"], "rope_parameters": {**rope, "partial_rotary_factor": keys["rotary_fraction"]}},
            num_local_experts=keys["experts"], num_experts_per_tok=keys["experts_per_token"])
    if is_glm_moe(keys) and "rotary_fraction" not in keys:
        return transformers.Dots1Config(
            **common, **sliding, attention_bias=keys["qkv_bias"], n_routed_experts=keys["experts"], num_experts_per_tok=keys["experts_per_token"],
            moe_intermediate_size=keys["expert_ff_width"], n_shared_experts=keys["shared_ff_width"] // keys["expert_ff_width"],
            norm_topk_prob=keys["normalize_top_k"], routed_scaling_factor=keys["router_scale"], first_k_dense_replace=keys["dense_layers"])
    if is_glm_moe(keys):
        return transformers.Glm4MoeConfig(
            **{**common, "rope_parameters": {**rope, "partial_rotary_factor": keys["rotary_fraction"]}}, attention_bias=keys["qkv_bias"],
            use_qk_norm=keys["qk_norm"], n_routed_experts=keys["experts"], num_experts_per_tok=keys["experts_per_token"],
            moe_intermediate_size=keys["expert_ff_width"], n_shared_experts=keys["shared_ff_width"] // keys["expert_ff_width"],
            norm_topk_prob=keys["normalize_top_k"], routed_scaling_factor=keys["router_scale"], first_k_dense_replace=keys["dense_layers"],
            n_group=keys["expert_groups"], topk_group=keys["groups_per_token"], num_mtp_layers=0)
    if is_gpt_oss(keys):
        return transformers.GptOssConfig(**{**common, **sliding, "intermediate_size": keys["expert_ff_width"]}, num_local_experts=keys["experts"],
                                         num_experts_per_tok=keys["experts_per_token"], swiglu_limit=keys["gate_limit"], attention_bias=keys["qkv_bias"])
    if is_gpt2(keys):
        act = "gelu_new" if keys["activation"] == "gelu_tanh" else act
        return transformers.GPT2Config(vocab_size=keys["vocab"], n_positions=keys["learned_positions"], n_embd=keys["width"], n_layer=keys["layers"],
                                       n_head=keys["heads"], n_inner=keys["ff_width"], activation_function=act, layer_norm_epsilon=keys["norm_eps"],
                                       tie_word_embeddings=keys["tied"], attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    if is_starcoder(keys):
        del common["rms_norm_eps"]
        return transformers.Starcoder2Config(**common, norm_epsilon=keys["norm_eps"], use_bias=keys["qkv_bias"], sliding_window=windows[0] if windows else None,
                                             residual_dropout=0.0, embedding_dropout=0.0)
    if is_cohere(keys):
        del common["rms_norm_eps"]
        common |= dict(layer_norm_eps=keys["norm_eps"], logit_scale=keys["logit_scale"], attention_bias=keys["qkv_bias"], bos_token_id=None, eos_token_id=None)
        return transformers.Cohere2Config(**common, **sliding) if windows else transformers.CohereConfig(**common, use_qk_norm=False)
    if is_apertus(keys):
        return transformers.ApertusConfig(**common, attention_bias=keys["qkv_bias"], dtype="float32")
    if is_glm(keys):
        kind = transformers.Glm4Config if norms_output(keys) else transformers.GlmConfig
        return kind(**{**common, "rope_parameters": {**rope, "partial_rotary_factor": keys["rotary_fraction"]}}, attention_bias=keys["qkv_bias"])
    if keys.get("norm_form") == "one_plus_weight":
        if not norms_output(keys):
            return transformers.GemmaConfig(**common)
        del common["hidden_act"]
        scalar = keys["head_dim"] if not keys.get("attention_scale") else keys["attention_scale"] ** -2
        common |= dict(sliding, hidden_activation=act, query_pre_attn_scalar=round(scalar), final_logit_softcapping=keys.get("logit_softcap"))
        if keys["qk_norm"]:
            return transformers.Gemma3TextConfig(**{**common, "rope_parameters": by_type})
        return transformers.Gemma2Config(**common, attn_logit_softcapping=keys.get("attention_softcap"))
    if norms_output(keys) and not norms_input(keys):
        if not keys.get("wide_qk_norm"):
            return transformers.Exaone4Config(**common, **sliding)
        return transformers.Olmo3Config(**{**common, **sliding, "rope_parameters": by_type}) if windows else transformers.Olmo2Config(**common)
    if keys.get("wide_qk_norm"):
        return transformers.OlmoeConfig(**{**common, "intermediate_size": keys["expert_ff_width"]}, num_experts=keys["experts"],
                                        num_experts_per_tok=keys["experts_per_token"], norm_topk_prob=keys["normalize_top_k"])
    multipliers = dict(embedding_multiplier=keys["embedding_scale"], residual_multiplier=keys["residual_scale"],
                       attention_multiplier=keys["attention_scale"], logits_scaling=1 / keys["logit_scale"])
    experts = dict(num_local_experts=keys.get("experts", 0), num_experts_per_tok=keys.get("experts_per_token", 0))
    if is_granite4(keys) or keys.get("class") == "granitemoehybrid":
        ff, shared = (keys["expert_ff_width"], keys["shared_ff_width"]) if has_experts(keys) else (keys["ff_width"], keys["ff_width"])
        return transformers.GraniteMoeHybridConfig(
            **{**common, "intermediate_size": ff}, **multipliers, **experts, shared_intermediate_size=shared, layer_types=["attention"] * keys["layers"],
            position_embedding_type="nope" if is_granite4(keys) else "rope", mamba_n_heads=2)
    if has_experts(keys):
        common = {**common, "intermediate_size": keys["expert_ff_width"], **multipliers, **experts}
        if keys["shared_ff_width"]:
            return transformers.GraniteMoeSharedConfig(**common, shared_intermediate_size=keys["shared_ff_width"])
        return transformers.GraniteMoeConfig(**common)
    return transformers.GraniteConfig(**common, **multipliers)


def make_config(keys):
    """The transformers configuration that computes what a deck with these keys computes."""
    rope = {"rope_type": "default", "rope_theta": keys["rope_theta"]}
    if keys["rope_scaling"] == "llama3":
        rope = {"rope_type": "llama3", "rope_theta": keys["rope_theta"], "factor": keys["rope_factor"],
                "low_freq_factor": keys["rope_low_freq_factor"], "high_freq_factor": keys["rope_high_freq_factor"],
                "original_max_position_embeddings": keys["rope_original_context"]}
    elif keys["rope_scaling"] != "none":
        rope = {"rope_type": keys["rope_scaling"], "rope_theta": keys["rope_theta"], "factor": keys["rope_factor"]}
        if keys["rope_scaling"] == "yarn":
            rope |= {"original_max_position_embeddings": keys["rope_original_context"], "beta_fast": 32.0, "beta_slow": 1.0}
            rope |= {"truncate": keys["rope_truncate"]} if "rope_truncate" in keys else {}
    if is_phi3(keys):
        return transformers.Phi3Config(
            vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["layers"],
            num_attention_heads=keys["heads"], num_key_value_heads=keys["kv_heads"], intermediate_size=keys["ff_width"], rms_norm_eps=keys["norm_eps"],
            tie_word_embeddings=keys["tied"], partial_rotary_factor=keys.get("rotary_fraction", 1.0), rope_theta=keys["rope_theta"], pad_token_id=None,
            original_max_position_embeddings=keys["rope_original_context"], max_position_embeddings=round(keys["rope_factor"] * keys["rope_original_context"]),
            rope_scaling={"type": "longrope", "short_factor": keys["rope_short_factors"], "long_factor": keys["rope_long_factors"]})
    # A dynamic rotation changes where sequences are longer than max_position_embeddings.
    positions = keys["rope_original_context"] if keys["rope_scaling"] == "dynamic" else 8192
    common = dict(hidden_size=keys["width"], num_hidden_layers=keys["layers"], num_attention_heads=keys["heads"],
                  num_key_value_heads=keys["kv_heads"], head_dim=keys["head_dim"], intermediate_size=keys["ff_width"],
                  vocab_size=keys["vocab"], rms_norm_eps=keys["norm_eps"], tie_word_embeddings=keys["tied"], rope_parameters=rope,
                  max_position_embeddings=positions, hidden_act=TYPES_OF_ACTIVATIONS[keys.get("activation", "silu")],
                  attention_dropout=0.0)
    if family := families.of(keys):
        return family.config(keys, common, rope)
    if keys.get("class") == "seed_oss":
        return transformers.SeedOssConfig(**common, residual_dropout=0.0, pad_token_id=None)
    layers = layers_of(keys)
    windows = [layer["window"] for layer in layers if layer["window"]]
    types = ["sliding_attention" if layer["window"] else "full_attention" for layer in layers]
    if any(key in keys for key in BLOCK_KEYS if key not in ("activation", "attention_out_bias", "mlp_bias")):
        return block_config(keys, common, layers, rope)
    if has_experts(keys):
        return make_expert_config(keys, common)
    if any(layer["positions"] == "none" for layer in layers):
        return transformers.SmolLM3Config(**common, no_rope_layers=[int(layer["positions"] == "rope") for layer in layers], pad_token_id=None)
    if keys.get("class") == "ministral":
        return transformers.MinistralConfig(**common, sliding_window=windows[0], layer_types=types)
    if windows and not (keys["qk_norm"] or keys["qkv_bias"]):
        if len(windows) < len(layers):
            return transformers.CwmConfig(**common, sliding_window=windows[0], layer_types=types)
        return transformers.MistralConfig(**common, sliding_window=windows[0])
    if windows:
        common |= {"use_sliding_window": True, "sliding_window": windows[0], "layer_types": types}
    if keys["qk_norm"]:
        return transformers.Qwen3Config(**common, attention_bias=keys["qkv_bias"])
    if keys["qkv_bias"] and not keys.get("attention_out_bias"):
        return transformers.Qwen2Config(**common)
    if keys["width"] % keys["heads"]:
        return transformers.MistralConfig(**common, sliding_window=None)
    return transformers.LlamaConfig(**common, attention_bias=keys["qkv_bias"], mlp_bias=keys.get("mlp_bias", False))


def make_expert_config(keys, common):
    """The losses of routers are not transformers' own, which are of all layers together: see router_losses."""
    per_token = {"num_experts_per_tok": keys["experts_per_token"]}
    if is_mixtral(keys):
        return transformers.MixtralConfig(**{**common, "intermediate_size": keys["expert_ff_width"]}, **per_token,
                                          num_local_experts=keys["experts"], sliding_window=None)
    qwen = dict(**common, **per_token, num_experts=keys["experts"], moe_intermediate_size=keys["expert_ff_width"],
                norm_topk_prob=keys["normalize_top_k"], decoder_sparse_step=1, mlp_only_layers=dense_layers(keys))
    if keys.get("class") == "step of 2":
        qwen |= dict(decoder_sparse_step=2, mlp_only_layers=[])
    if keys["shared_ff_width"]:
        return transformers.Qwen2MoeConfig(**qwen, shared_expert_intermediate_size=keys["shared_ff_width"], qkv_bias=keys["qkv_bias"])
    return transformers.Qwen3MoeConfig(**qwen, attention_bias=keys["qkv_bias"])


def least_gap(scores, k):
    """By which the k largest of a row are larger than the next."""
    largest = scores.topk(min(k + 1, scores.shape[-1])).values
    return (largest[:, k - 1] - largest[:, -1]).min().item() if k < scores.shape[-1] else float("inf")


class RouterLosses:
    """Adds up what routers lose, layer by layer, as the deck's keys say: from what each router read and its weights."""

    def __init__(self, model, keys):
        self.keys, self.losses, self.least_gap = keys, [], float("inf")
        gates = [(layer.mlp.router if is_gpt_oss(keys) else layer.mlp.gate) if hasattr(layer, "mlp") else layer.block_sparse_moe.router
                 for n, layer in enumerate(model.model.layers if has_experts(keys) else []) if n not in dense_layers(keys)]
        self.hooks = [gate.register_forward_pre_hook(self.read) for gate in gates]

    def read(self, gate, inputs):
        E, k = self.keys["experts"], self.keys["experts_per_token"]
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, self.keys["width"]), gate.weight, getattr(gate, "bias", None))
        scores, probabilities = logits, logits.softmax(-1)
        if has_sigmoids(self.keys):
            sigmoids, bias = logits.sigmoid(), inputs[1] if is_minimax(self.keys) else gate.e_score_correction_bias
            scores, probabilities = self.of_groups(sigmoids.detach() + bias), sigmoids / sigmoids.sum(-1, keepdim=True)
        self.least_gap = min(self.least_gap, least_gap(scores.detach(), k))
        counts = torch.bincount(scores.topk(k).indices.reshape(-1), minlength=E).to(logits.dtype)
        balance = E * (counts / (k * len(logits)) * probabilities.mean(0)).sum()
        z = logits.logsumexp(-1).square().mean()
        self.losses.append(self.keys["router_aux_loss"] * balance + self.keys["router_z_loss"] * z)

    def of_groups(self, scores):
        """Those of the groups that a token's experts are chosen from; others are never."""
        count, taken = self.keys.get("expert_groups", 1), self.keys.get("groups_per_token", 1)
        groups = scores.view(len(scores), count, -1)
        best = groups.topk(2).values.sum(-1)
        self.least_gap = min(self.least_gap, least_gap(best, taken))
        chosen = torch.zeros_like(best, dtype=bool).scatter(-1, best.topk(taken).indices, True)
        return groups.masked_fill(~chosen[..., None], float("-inf")).flatten(1)

    def take(self):
        losses, self.losses = self.losses, []
        return sum(losses)


def make_model(keys):
    config = keys.get("config") or make_config(keys)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float32).train()
    if model.config._attn_implementation != "eager":
        raise SystemExit(f"transformers chose the attention {model.config._attn_implementation}; the fixtures need eager")
    return model


class Part:
    """A tensor of ours inside a parameter of transformers, which holds the matrices of all experts in one, perhaps turned."""

    def __init__(self, whole, index, turned=False):
        self.whole, self.index, self.turned = whole, index, turned
        self.shape = self.mine(whole).shape

    def mine(self, whole):
        return whole[self.index].T if self.turned else whole[self.index]

    def dim(self):
        return len(self.shape)

    def copy_(self, values):
        self.whole.data[self.index] = values.T if self.turned else values

    def detach(self):
        return self.mine(self.whole.detach())

    @property
    def grad(self):
        return self.mine(self.whole.grad)


def whole_parameters(parameters):
    """The parameters of torch that ours are, or are parts of, each once."""
    wholes = [p.whole if isinstance(p, Part) else p for p in parameters.values()]
    return list({id(p): p for p in wholes}.values())


def fused_part(theirs, ours, name, keys):
    """Of a matrix that lies in a tensor with others: its part, or None."""
    if part := expert_part(ours, keys):
        return Part(theirs[name], *part)
    expert = re.search(r"experts\.(\d+)\.(w_\w+)$", ours)
    if expert and name.endswith(("input_linear.weight", "output_linear.weight")):
        layer, number, ff = name.rsplit(".", 2)[0], int(expert[1]), keys["expert_ff_width"]
        if expert[2] == "w_down":
            return Part(theirs[f"{layer}.experts.down_proj"], number)
        return Part(theirs[f"{layer}.experts.gate_up_proj"], (number, slice(0, ff) if expert[2] == "w_gate" else slice(ff, 2 * ff)))
    if name.endswith("shared_mlp.input_linear.weight"):
        ff = theirs[name].shape[0] // 2
        return Part(theirs[name], slice(0, ff) if ours.endswith("gate") else slice(ff, 2 * ff))
    query, key, ff = keys["heads"] * keys["head_dim"], keys["kv_heads"] * keys["head_dim"], keys["ff_width"]
    rows = {"q_proj": ("qkv_proj", 0, query), "k_proj": ("qkv_proj", query, query + key), "v_proj": ("qkv_proj", query + key, query + 2 * key),
            "gate_proj": ("gate_up_proj", 0, ff), "up_proj": ("gate_up_proj", ff, 2 * ff)}
    layer, matrix, _ = name.rsplit(".", 2)
    if matrix not in rows or name in theirs or f"{layer}.{rows[matrix][0]}.weight" not in theirs:
        return None
    fused, first, last = rows[matrix]
    return Part(theirs[f"{layer}.{fused}.weight"], slice(first, last))


def find_parameter(theirs, name, keys, ours):
    """The parameter, or the part of one, that a checkpoint of transformers calls `name`, and we `ours`."""
    if name.count(".") >= 2 and (part := fused_part(theirs, ours, name, keys)) is not None:
        return part
    name = name.replace("router.layer.weight", "router.weight") if "router.layer" in name and name not in theirs else name
    if name in theirs:
        return theirs[name]
    name = name.replace("block_sparse_moe", "mlp")
    expert = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)\.weight", name)
    if not expert:
        return theirs.get(name)
    layer, number, matrix, ff = expert[1], int(expert[2]), expert[3], keys["expert_ff_width"]
    if matrix in ("w2", "down_proj"):
        return Part(theirs[f"{layer}.down_proj"], number)
    return Part(theirs[f"{layer}.gate_up_proj"], (number, slice(0, ff) if matrix in ("w1", "gate_proj") else slice(ff, 2 * ff)))


def our_parameters(model, keys):
    """Our name -> torch parameter, or part of one, with every name and shape checked both ways."""
    theirs = dict(model.named_parameters()) | {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    ours = {}
    for name, hf_name, shape in tensor_table(keys):
        parameter = find_parameter(theirs, hf_name, keys, name)
        if parameter is None:
            raise SystemExit(f"transformers has no tensor {hf_name} (ours: {name})")
        if tuple(parameter.shape) != shape:
            raise SystemExit(f"{hf_name} is {tuple(parameter.shape)} in transformers, {name} is {shape} here")
        ours[name] = parameter
    known = {id(p) for p in whole_parameters(ours)}
    lacking = [name for name, p in theirs.items() if id(p) not in known]
    elements = sum(p.shape.numel() for p in ours.values())
    if lacking or elements != sum(p.numel() for p in theirs.values()):
        raise SystemExit(f"transformers has tensors that the table lacks: {', '.join(lacking) or 'parts of some'}")
    return ours
