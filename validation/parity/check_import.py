#!/usr/bin/env python3
"""Models that transformers makes and saves, imported by run.init: every tensor comes back to the bit, and the loss is transformers' own.

    TESSERA=build/host/tessera check_import.py [NAME ...]

Each model of MODELS has random weights and is saved in the types that stand beside it; `tessera deck from-hf` makes its deck, a run with a learning
rate of 0 begins with it, `tessera consolidate` gives it back, `tessera evaluate` its mean loss in fp32. Without a NAME a third of them, others at each commit; with TESSERA_TEST_FULL=1 all.
Exit status: 0 all agree, 1 not, 77 when torch or transformers is not installed.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program", "resume"))
import drawn  # noqa: E402
import families
from exports import fail, read_export, read_tensor
from models import DEFAULTS, make_config, make_model, model_keys

TESSERA = os.environ.get("TESSERA", "build/host/tessera")
TOLERANCE = 1e-5  # of the loss, relative
LENGTH, SAMPLES = 40, 6
IN_FP32 = "e_score_correction_bias"  # a buffer, whatever the type of weights
EXPERTS = {"kv_heads": 2, "vocab": 64, "experts": 6, "experts_per_token": 2, "expert_ff_width": 16}
# name: (keys of models.py, types that it is saved in)
MODELS = {
    "llama": (DEFAULTS, ("float32", "bfloat16", "float16")),
    "llama32": ({**model_keys("rope_llama3"), "tied": True, "rope_theta": 5e5}, ("bfloat16",)),
    "linear": ({**DEFAULTS, "rope_scaling": "linear", "rope_factor": 3.0}, ("bfloat16",)),
    "dynamic": ({**DEFAULTS, "head_dim": 16, "rope_scaling": "dynamic", "rope_factor": 2.0, "rope_original_context": 24}, ("bfloat16",)),
    "yarn": ({**DEFAULTS, "head_dim": 16, "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_context": 16}, ("bfloat16",)),
    "smollm": (model_keys("gqa7_dim48"), ("bfloat16",)),
    "mistral": ({**DEFAULTS, "width": 30, "kv_heads": 2}, ("bfloat16",)),
    "windowed": (model_keys("window"), ("bfloat16",)),
    "smollm3": (model_keys("no_rope"), ("bfloat16",)),
    "cwm": ({**DEFAULTS, "kv_heads": 2, "layers": 3, "pattern": "GLL", "kinds": [{"name": "G"}, {"name": "L", "window": 7}]}, ("bfloat16",)),
    "qwen2": (model_keys("qkv_bias"), ("bfloat16",)),
    "qwen2_windows": ({**model_keys("qkv_bias"), "layers": 3, "pattern": "GL", "kinds": [{"name": "G"}, {"name": "L", "window": 5}]}, ("bfloat16",)),
    "qwen3_windows": (model_keys("windows"), ("bfloat16",)),
    "qwen3": (model_keys("qk_norm"), ("bfloat16",)),
    "qwen3_biases": ({**model_keys("qk_norm"), "qkv_bias": True, "attention_out_bias": True}, ("bfloat16",)),
    "llama_biases": ({**DEFAULTS, "kv_heads": 2, "qkv_bias": True, "attention_out_bias": True}, ("bfloat16",)),
    "llama_mlp_biases": ({**DEFAULTS, "kv_heads": 2, "mlp_bias": True}, ("bfloat16",)),
    "gemma": ({**DEFAULTS, "kv_heads": 2, "tied": True, "norm_form": "one_plus_weight", "activation": "gelu_tanh", "embedding_scale": "sqrt_width"},
              ("bfloat16",)),
    "gemma2": (model_keys("gemma2"), ("float32", "bfloat16")),
    "gemma3": (model_keys("gemma3"), ("bfloat16",)),
    "olmo2": ({**DEFAULTS, "kv_heads": 2, "qk_norm": True, "wide_qk_norm": True, "norm_placement": "post"}, ("bfloat16",)),
    "olmo3": (model_keys("olmo3"), ("bfloat16",)),
    "exaone4": ({**DEFAULTS, "kv_heads": 2, "qk_norm": True, "norm_placement": "post"}, ("bfloat16",)),
    "exaone4_windows": ({**DEFAULTS, "layers": 3, "qk_norm": True, "norm_placement": "post", "pattern": "LG",
                         "kinds": [{"name": "L", "window": 5}, {"name": "G", "positions": "none"}]}, ("bfloat16",)),
    "glm": ({**DEFAULTS, "kv_heads": 2, "qkv_bias": True, "rotary_fraction": 0.5, "rope_pairs": "neighbours"}, ("bfloat16",)),
    "glm4": ({**DEFAULTS, "kv_heads": 1, "head_dim": 12, "qkv_bias": True, "rotary_fraction": 0.5, "rope_pairs": "neighbours", "norm_placement": "both"}, ("bfloat16",)),
    "glm4_moe": (model_keys("glm4_moe"), ("float32", "bfloat16")),
    "dots1": (model_keys("dots1"), ("bfloat16",)),
    "dots1_plain": ({**model_keys("dots1"), "layers": 2, "pattern": "", "kinds": []}, ("bfloat16",)),
    "minimax_m2": (model_keys("minimax_m2"), ("float32", "bfloat16")),
    "granite": (model_keys("granite"), ("bfloat16",)),
    "granitemoe": (model_keys("granitemoe"), ("float32", "bfloat16")),
    "granitemoeshared": (model_keys("granitemoeshared"), ("float32", "bfloat16")),
    "granite4": (model_keys("granite4"), ("bfloat16",)),
    "granite4_dense": (model_keys("granite4_dense"), ("bfloat16",)),
    # With positions they are exported as the granite and the granitemoeshared that they are.
    "granite4_rope": ({**model_keys("granite4"), "positions": "rope", "class": "granitemoehybrid"}, ("bfloat16",)),
    "granite4_micro": ({**model_keys("granite"), "activation": "silu", "class": "granitemoehybrid"}, ("float32", "bfloat16")),
    "phi3": ({**DEFAULTS, "kv_heads": 2, "type": "phi3"}, ("float32", "bfloat16")),
    "phi3_windows": ({**DEFAULTS, "kv_heads": 2, "window": 7, "type": "phi3"}, ("bfloat16",)),
    "olmoe": ({**DEFAULTS, **EXPERTS, "qk_norm": True, "wide_qk_norm": True, "shared_ff_width": 0, "normalize_top_k": False}, ("bfloat16",)),
    # Of a model of text and images the text model is read, and exported alone.
    "gemma3_images": ({**model_keys("gemma3"), "whole": "Gemma3"}, ("float32", "bfloat16")),
    "mistral3_images": ({**DEFAULTS, "kv_heads": 2, "tied": True, "whole": "Mistral3"}, ("bfloat16",)),
    "mistral3_own_head": ({**DEFAULTS, "kv_heads": 2, "whole": "Mistral3"}, ("bfloat16",)),
    "phi3_long": (model_keys("phi3_long"), ("float32", "bfloat16")),
    "phi3_short": ({**model_keys("phi3_long"), "rotary_fraction": 1.0, "rope_original_context": 64, "rope_factor": 32.0,
                    "rope_short_factors": [1.0, 1.25, 1.5, 2.0], "rope_long_factors": [1.0, 2.0, 4.0, 9.0]}, ("bfloat16",)),
    "apertus": (model_keys("apertus"), ("float32", "bfloat16")),
    "apertus_biases": ({**model_keys("apertus"), "qkv_bias": True, "attention_out_bias": True}, ("bfloat16",)),
    "starcoder2": (model_keys("starcoder2"), ("float32", "bfloat16")),
    "gpt2": (model_keys("gpt2"), ("float32", "bfloat16")),
    "cohere2": (model_keys("cohere2"), ("float32", "bfloat16")),
    "cohere": ({**model_keys("cohere2"), "layers": 2, "pattern": "", "kinds": []}, ("bfloat16",)),
    "cohere_biases": ({**model_keys("cohere2"), "qkv_bias": True, "attention_out_bias": True}, ("bfloat16",)),
    "gpt_oss": (model_keys("gpt_oss"), ("float32", "bfloat16")),
    "mixtral": (model_keys("mixtral"), ("float32", "bfloat16")),
    "qwen2_moe": (model_keys("qwen_moe"), ("bfloat16",)),
    "qwen2_sparse": ({**model_keys("qwen_moe"), "layers": 3, "pattern": "GGD", "kinds": [{"name": "G"}, {"name": "D", "experts": False}]}, ("bfloat16",)),
    "qwen3_sparse": (model_keys("qwen_sparse"), ("float32", "bfloat16")),
    "qwen3_moe": ({**DEFAULTS, **EXPERTS, "qk_norm": True, "shared_ff_width": 0, "normalize_top_k": True}, ("bfloat16",)),
}
MODELS |= {name: ({**DEFAULTS, **family.KEYS, **keys}, types) for family in families.ALL.values() for name, (keys, types) in family.MODELS.items()}


def with_own_head(folder):
    """As a merge leaves it whose head was trained: config.json says that the embedding is the head, and the file has another one."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def with_yarn_beside(folder):
    """As cards of models say it: rope_scaling, in a file that has rope_parameters already."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**config, "eos_token_id": [3, 5], "pad_token_id": 0}, file)


# Mistral's own layout by the rows of transformers' convert_mistral_weights_to_hf.py, the other way.
OWN_NAMES = (("model.embed_tokens", "tok_embeddings"), ("lm_head", "output"), ("model.", ""), ("self_attn.q_proj", "attention.wq"), ("self_attn.k_proj", "attention.wk"),
             ("self_attn.v_proj", "attention.wv"), ("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"), ("mlp.down_proj", "feed_forward.w2"),
             ("mlp.up_proj", "feed_forward.w3"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"))


def in_own_layout(folder):
    """The folder of the same model as Mistral publishes it."""
    own = folder + "-own"
    os.mkdir(own)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = {}
    for name, value in load_file(os.path.join(folder, "model.safetensors")).items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            rows, columns = value.shape
            value = value.view(rows // config["head_dim"], 2, config["head_dim"] // 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()
        for theirs, ours in OWN_NAMES:
            name = name.replace(theirs, ours)
        tensors[name] = value
    save_file(tensors, os.path.join(own, "consolidated.safetensors"))
    keys = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "head_dim": "head_dim", "hidden_dim": "intermediate_size", "n_heads": "num_attention_heads",
            "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps", "vocab_size": "vocab_size", "max_seq_len": "max_position_embeddings"}
    with open(os.path.join(own, "params.json"), "w", encoding="utf-8") as file:
        json.dump({**{key: config[value] for key, value in keys.items()}, "rope_theta": config["rope_parameters"]["rope_theta"]}, file)
    return own


# name: (keys, what is done to the folder or which other is made of it, what of the configuration an export has otherwise); saved in fp32
ALTERED = {
    "own_head": ({**DEFAULTS, "tied": True}, with_own_head, {"tie_word_embeddings": False}),
    "yarn_beside": ({**DEFAULTS, "head_dim": 16}, with_yarn_beside, {}),
    "mistral_own": ({**DEFAULTS, "width": 30, "kv_heads": 2}, in_own_layout, {"bos_token_id": None, "eos_token_id": None}),
}
# The first step of a logarithmic warmup has a learning rate of 0.
FROZEN = ["run.steps=2", "learning_rate.warmup_steps=2", "learning_rate.warmup_type=log", "checkpoint.every=1", "checkpoint.keep=0", "batch.global=2",
          "precision.compute=fp32", "run.device=host", f"batch.sequence_length={LENGTH}"]


def tessera(*arguments):
    done = subprocess.run([TESSERA, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        fail(f"tessera {' '.join(arguments)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def phi3_config(keys):
    """A Llama, or a Mistral, by keys of Phi-3, as its first files had them too."""
    config = make_config(keys).to_dict()
    shared = {key: config[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
                                           "vocab_size", "rms_norm_eps", "max_position_embeddings")}
    return transformers.Phi3Config(**shared, sliding_window=config.get("sliding_window"), pad_token_id=None)


def whole_model(keys):
    """The text model in one of text and images."""
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    more = {"mm_tokens_per_image": 4} if keys["whole"] == "Gemma3" else {}
    text = make_config(keys)
    if keys["whole"] == "Mistral3":
        text = transformers.MistralConfig(**{key: value for key, value in text.to_dict().items() if key not in ("model_type", "architectures", "mlp_bias", "attention_bias")},
                                          sliding_window=None)
        vision["model_type"] = "pixtral"
    config = getattr(transformers, f"{keys['whole']}Config")(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=keys["tied"], **more)
    config._attn_implementation = "eager"
    return getattr(transformers, f"{keys['whole']}ForConditionalGeneration")(config).to(torch.float32)


def random_model(keys):
    """Weights far from where training begins: logits are large, norms and biases count."""
    model = whole_model(keys) if "whole" in keys else make_model({**keys, "config": phi3_config(keys)} if keys.get("type") == "phi3" else keys)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        for name, buffer in model.named_buffers():
            if name.endswith(IN_FP32):
                buffer.normal_(0, 0.2)
    return model


def in_type(model, dtype):
    """As from_pretrained would have it."""
    in_fp32 = model._keep_in_fp32_modules_strict or ()
    kept = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(IN_FP32) and IN_FP32 in in_fp32}
    model.to(dtype)
    for name, buffer in kept.items():
        module, attribute = name.rsplit(".", 1)
        setattr(model.get_submodule(module), attribute, torch.nn.Buffer(buffer))
    return model


def bits_of(row):
    """What a tensor must come back as: in the type that it was saved in, or, of a half, in fp32."""
    values, dtype = read_tensor(row), row[1]
    return values.astype(np.float32).view(np.uint32) if dtype == "F16" else values.view(np.uint32 if dtype == "F32" else np.uint16)


def parts_of(name, values, heads):
    """What an export has in the place of a tensor with rows of several: [(name, values)]. `heads`: of queries, and of keys."""
    if name.endswith("shared_mlp.output_linear.weight"):
        return [(name.replace("shared_mlp.output_linear", "mlp.down_proj"), values)]
    if name.endswith("shared_mlp.input_linear.weight"):
        return [(name.replace("shared_mlp.input_linear", f"mlp.{word}_proj"), part) for word, part in zip(("gate", "up"), np.split(values, 2))]
    if name.endswith("qkv_proj.weight"):
        queries, keys = (len(values) * n // (heads[0] + 2 * heads[1]) for n in heads)
        cuts, words = (queries, queries + keys), ("q_proj", "k_proj", "v_proj")
    else:
        cuts, words = (len(values) // 2,), ("gate_proj", "up_proj")
    module = "qkv_proj" if len(words) == 3 else "gate_up_proj"
    return [(name.replace(module, word), part) for word, part in zip(words, np.split(values, cuts))]


def compare_parts(saved, back, keys):
    """Of a model whose export has q, k, v, gate and up alone: faults in words."""
    want = {}
    for name, row in saved.items():
        values = bits_of(row)
        fused = any(word in name for word in ("qkv_proj", "gate_up_proj", "shared_mlp"))
        want |= dict(parts_of(name, values, (keys["heads"], keys["kv_heads"])) if fused else [(name, values)])
    faults = [f"{name} is in one alone" for name in want.keys() ^ back.keys()]
    return faults + [f"{name} differs" for name in want.keys() & back.keys() if not np.array_equal(want[name], bits_of(back[name]))]


def compare(saved, back):
    """Faults in words."""
    faults = [f"{name} did not come back" for name in saved.keys() - back.keys()] + [f"{name} is new" for name in back.keys() - saved.keys()]
    for name in saved.keys() & back.keys():
        want, got = bits_of(saved[name]), bits_of(back[name])
        if want.shape != got.shape:
            faults.append(f"{name} was {want.shape} and is {got.shape}")
        elif not np.array_equal(want, got):
            faults.append(f"{name} differs in {np.count_nonzero(want != got)} of {want.size} values")
    return faults


def loss_of(folder, tokens):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        kind = json.load(file)["architectures"][0]
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True).eval()
    inputs = torch.from_numpy(np.stack([tokens[i * LENGTH:(i + 1) * LENGTH] for i in range(SAMPLES)]).astype(np.int64))
    targets = torch.from_numpy(np.stack([tokens[i * LENGTH + 1:(i + 1) * LENGTH + 1] for i in range(SAMPLES)]).astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=inputs, use_cache=False).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def check(name, keys, dtype, work, alter=None, otherwise=()):
    torch.manual_seed(len(name))
    folder, back, deck = (os.path.join(work, part) for part in ("model", "back", "deck.toml"))
    in_type(random_model(keys), getattr(torch, dtype)).save_pretrained(folder, max_shard_size="30KB" if dtype == "bfloat16" else "5GB")
    given = alter(folder) or folder if alter else folder
    tokens = np.random.default_rng(1).integers(0, keys["vocab"], SAMPLES * LENGTH + 1).astype("<u2")
    data = os.path.join(work, "tokens.bin")
    tokens.tofile(data)
    with open(deck, "w", encoding="utf-8") as file:
        still = ["model.router_bias_rate=0"] if keys.get("router_balance") == "bias" else []
        file.write(tessera("deck", "from-hf", given, f"data.train={data}", *FROZEN, *still))
    tessera("train", deck, f"run.output_dir={work}/run")
    step = f"{work}/run/checkpoints/step-00000001"
    tessera("consolidate", step, back, "--dtype", "bf16" if dtype == "bfloat16" else "fp32")
    saved = read_export(folder)
    if "whole" in keys:
        saved = {name.removeprefix("language_model."): row for name, row in saved.items() if name.startswith("language_model.") or name == "lm_head.weight"}
    types = {row[1] for name, row in saved.items() if not name.endswith(IN_FP32)}
    parts = keys.get("type") == "phi3" or (keys.get("class") == "granitemoehybrid" and "experts" not in keys)
    alike = (lambda *both: compare_parts(*both, keys)) if parts else compare
    faults = alike(saved, read_export(back)) if len(types) == 1 else [f"transformers saved {types}"]
    configs = [transformers.AutoConfig.from_pretrained(where) for where in (folder, back)]
    configs[0] = configs[0].text_config if "whole" in keys else configs[0]
    plain = {"head_dim": keys["head_dim"], "rope_parameters": {"rope_type": "default", "rope_theta": keys["rope_theta"]}}  # which a Phi-3 says otherwise
    for what in ("max_position_embeddings", "rope_parameters", "tie_word_embeddings", "head_dim", "num_key_value_heads", "bos_token_id", "eos_token_id",
                 "pad_token_id"):
        was, now = (getattr(config, what, None) for config in configs)
        was = {**dict(otherwise), **(plain if keys.get("type") == "phi3" else {})}.get(what, was)
        if isinstance(was, dict) and isinstance(now, dict):  # what is left out of either is the default
            now = {key: now[key] for key in was if key in now}
        if was != now:
            faults.append(f"config.json: {what} was {was} and is {now}")
    ours, theirs = json.loads(tessera("evaluate", step, "--data", data, "--device", "host", "--json"))["loss"], loss_of(folder, tokens)
    error = abs(ours - theirs) / abs(theirs)
    if not error < TOLERANCE:
        faults.append(f"loss {ours:.8f}, transformers {theirs:.8f}: relative difference {error:.1e}, tolerance {TOLERANCE:.0e}")
    print(f"{'FAIL' if faults else 'ok  '} {name} {dtype}: {len(saved)} tensors, loss {ours:.6f}, relative difference {error:.1e}", flush=True)
    for fault in faults[:8]:
        print(f"     {fault}")
    return not faults


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    good = True
    for name in sys.argv[1:] or drawn.third([*MODELS, *ALTERED]):
        keys, *how = ALTERED[name] if name in ALTERED else (MODELS[name][0],)
        for dtype in MODELS[name][1] if name in MODELS else ("float32",):
            with tempfile.TemporaryDirectory() as work:
                good &= check(name, keys, dtype, work, *how)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
