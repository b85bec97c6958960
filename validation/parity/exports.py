"""Reads an exported folder with nothing but numpy: config.json, and tensors from safetensors files whole or split."""

import json
import os
import struct
import sys

import numpy as np

import families

DTYPES = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F16": np.dtype("<f2")}


def fail(message):
    print(message, file=sys.stderr)
    raise SystemExit(1)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        fail(f"{path} is missing: is this a folder that `tessera consolidate` wrote?")
    except json.JSONDecodeError as error:
        fail(f"{path}: not JSON: {error}")


def read_header(path):
    """name -> (dtype, shape, first byte, last byte + 1) of one safetensors file."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if 8 + length > size:
                fail(f"{path}: the header claims {length} bytes, the file has {size}")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        fail(f"{path} is missing")
    except (struct.error, json.JSONDecodeError) as error:
        fail(f"{path}: not a safetensors file: {error}")
    header.pop("__metadata__", None)
    tensors = {name: (row["dtype"], tuple(row["shape"]), *(8 + length + o for o in row["data_offsets"])) for name, row in header.items()}
    for name, (dtype, shape, begin, end) in tensors.items():
        if dtype not in DTYPES:
            fail(f"{path}: {name} has the dtype {dtype}; known are {', '.join(DTYPES)}")
        if end > size or end - begin != DTYPES[dtype].itemsize * int(np.prod(shape, dtype=np.int64)):
            fail(f"{path}: {name} {shape} {dtype} does not fit its bytes {begin} to {end} of {size}")
    return tensors


def read_export(folder):
    """name -> (file, dtype, shape, begin, end) over all files of an exported folder."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        path = os.path.join(folder, "model.safetensors")
        return {name: (path, *row) for name, row in read_header(path).items()}
    places = read_json(index)["weight_map"]
    tensors = {}
    for file in sorted(set(places.values())):
        path = os.path.join(folder, file)
        for name, row in read_header(path).items():
            if places.get(name) != file:
                fail(f"{path} holds {name}, which {index} places in {places.get(name, 'no file')}")
            tensors[name] = (path, *row)
    for name, file in places.items():
        if name not in tensors:
            fail(f"{index} places {name} in {file}, which does not hold it")
    return tensors


def read_tensor(row):
    """The values as stored; bf16 comes as its 16 bits."""
    path, dtype, shape, begin, end = row
    return np.fromfile(path, DTYPES[dtype], offset=begin, count=(end - begin) // DTYPES[dtype].itemsize).reshape(shape)


def bf16_bits(values):
    """fp32 to the nearest bf16, ties to even, as bits (finite values)."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def keys_of_config(config):
    """The model keys that decide names and shapes, from config.json."""
    if config["model_type"] == "gpt2":
        width = config["n_embd"]
        return {"layers": config["n_layer"], "width": width, "heads": config["n_head"], "kv_heads": config["n_head"], "head_dim": width // config["n_head"],
                "ff_width": config.get("n_inner") or 4 * width, "vocab": config["vocab_size"], "tied": config.get("tie_word_embeddings", True),
                "qk_norm": False, "norm_form": "layer_norm", "gated": False, "mlp_bias": True, "qkv_bias": True, "attention_out_bias": True,
                "positions": "none", "learned_positions": config["n_positions"]}
    heads, kind = config["num_attention_heads"], config["model_type"]
    keys = {"layers": config["num_hidden_layers"], "width": config["hidden_size"], "heads": heads,
            "kv_heads": config.get("num_key_value_heads", heads), "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "ff_width": config["intermediate_size"], "vocab": config["vocab_size"], "tied": config.get("tie_word_embeddings", False),
            "qk_norm": kind in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3", "olmoe", "exaone4", "dots1", "minimax_m2"),
            "wide_qk_norm": kind in ("olmo2", "olmo3", "olmoe", "minimax_m2"),
            "norm_placement": "post" if kind in ("olmo2", "olmo3", "exaone4") else "both" if kind in ("gemma2", "gemma3_text", "glm4") else "parallel" if kind in ("cohere", "cohere2") else "pre",
            "rope_pairs": "neighbours" if kind in ("glm", "glm4", "cohere", "cohere2") else "halves",
            "qkv_bias": kind == "qwen2" or (kind == "qwen2_moe" and config.get("qkv_bias", True)) or config.get("attention_bias", False)}
    if family := families.ALL.get(kind):
        keys |= {"class": kind, **family.read(config)}
    elif kind == "mixtral":
        keys |= {"experts": config["num_local_experts"], "expert_ff_width": config["intermediate_size"], "shared_ff_width": 0,
                 "normalize_top_k": True}
    elif kind == "starcoder2":
        biased = config.get("use_bias", True)
        keys |= {"norm_form": "layer_norm", "gated": False, "mlp_bias": biased, "qkv_bias": biased, "attention_out_bias": biased}
    elif kind in ("cohere", "cohere2"):
        keys |= {"norm_form": "layer_norm_no_bias", "attention_out_bias": config.get("attention_bias", False), "tied": config.get("tie_word_embeddings", True)}
    elif kind == "apertus":
        keys |= {"gated": False, "activation": config["hidden_act"], "attention_out_bias": config.get("attention_bias", False), "qk_norm": True}
    elif kind == "phi3":
        keys |= {"rope_scaling": "longrope"}
    elif kind == "gpt_oss":
        biased = config.get("attention_bias", True)
        keys |= {"experts": config["num_local_experts"], "expert_ff_width": config["intermediate_size"], "shared_ff_width": 0, "normalize_top_k": True,
                 "attention_sinks": True, "expert_bias": True, "qkv_bias": biased, "attention_out_bias": biased}
    elif kind == "minimax_m2":
        keys |= {"experts": config["num_local_experts"], "expert_ff_width": config["intermediate_size"], "shared_ff_width": 0, "normalize_top_k": True,
                 "router_scores": "sigmoid"}
    elif kind in ("glm4_moe", "dots1"):
        keys |= {"experts": config["n_routed_experts"], "expert_ff_width": config["moe_intermediate_size"], "shared_gate": False, "router_scores": "sigmoid",
                 "shared_ff_width": config["n_shared_experts"] * config["moe_intermediate_size"], "normalize_top_k": config["norm_topk_prob"],
                 "qk_norm": kind == "dots1" or config.get("use_qk_norm", False), "dense_layers": config["first_k_dense_replace"]}
    elif kind in ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"):
        count, shared = config.get("num_local_experts", 0), config.get("shared_intermediate_size", 0)
        keys |= {"residual_scale": config["residual_multiplier"], "positions": "rope" if config.get("position_embedding_type", "rope") == "rope" else "none"}
        keys |= {"experts": count, "expert_ff_width": config["intermediate_size"], "shared_ff_width": shared, "normalize_top_k": True} if count else {}
        keys |= {"ff_width": shared} if shared and not count else {}
    elif kind in ("qwen2_moe", "qwen3_moe"):
        keys |= {"experts": config["num_experts"], "expert_ff_width": config["moe_intermediate_size"],
                 "shared_ff_width": config.get("shared_expert_intermediate_size", 0), "normalize_top_k": config["norm_topk_prob"],
                 "kinds": [{"name": "D", "experts": False}, {"name": "E"}],
                 "pattern": "".join("D" if n in config.get("mlp_only_layers", []) or (n + 1) % config.get("decoder_sparse_step", 1) else "E"
                                    for n in range(config["num_hidden_layers"]))}
    return keys
