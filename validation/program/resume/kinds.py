#!/usr/bin/env python3
"""Layers of several kinds (model.pattern), and blocks that meet the stream in other ways than a Llama's: the same bits on any layout and across a
resume; near them where sums have another order. One of the models is drawn; with TESSERA_TEST_FULL=1 all.
    kinds.py [--device host|cuda] [MODEL ...]"""
import argparse
import json
import sys

import runs
from drawn import DRAW, FULL, third

check = runs.Checks()
COMMON = {"model__heads": 4, "model__kv_heads": 2, "model__layers": 4, "batch__global": 4, "batch__micro": 1, "batch__sequence_length": 12,
          "run__steps": 4, "run__log_every": 1, "checkpoint__every": 2, "checkpoint__keep": 0}
MODELS = {
    "kinds": {"model__layers": 5, "model__window": 5, "model__pattern": json.dumps("LLNG"), "model__qk_norm": True, "model__rotary_fraction": 0.5,
              "model__kinds": '[{ name = "L", rope_theta = 500.0 }, { name = "N", positions = "none", window = 7 }, { name = "G", window = 0 }]'},
    "gemma": {"model__norm_placement": "both", "model__norm_form": "one_plus_weight", "model__activation": "gelu_tanh", "model__qk_norm": True,
              "model__embedding_scale": "sqrt_width", "model__attention_softcap": 2.0, "model__logit_softcap": 3.0, "model__tied": True,
              "model__pattern": json.dumps("LG"), "model__kinds": '[{ name = "L", window = 5, rope_theta = 500.0 }, { name = "G" }]'},
    "olmo": {"model__norm_placement": "post", "model__qk_norm": True, "model__wide_qk_norm": True, "model__activation": "gelu"},
    "granite": {"model__embedding_scale": 3.0, "model__residual_scale": 0.5, "model__attention_scale": 0.25, "model__logit_scale": 0.5,
                "model__rotary_fraction": 0.5, "model__rope_pairs": "neighbours"},
    "starcoder": {"model__norm_form": "layer_norm", "model__gated": False, "model__activation": "relu_squared", "model__mlp_bias": True, "model__qkv_bias": True,
                  "model__attention_out_bias": True, "model__norm_placement": "both"},
    "apertus": {"model__qk_norm": True, "model__gated": False, "model__activation": "xielu"},
    "gpt2": {"model__norm_form": "layer_norm", "model__gated": False, "model__activation": "gelu_tanh", "model__mlp_bias": True, "model__qkv_bias": True,
             "model__attention_out_bias": True, "model__kv_heads": 4, "model__tied": True, "model__positions": "none", "model__learned_positions": 20},
    # More than a Cohere 2 has: biases, and a scale of what joins the stream.
    "cohere": {"model__norm_placement": "parallel", "model__norm_form": "layer_norm_no_bias", "model__rope_pairs": "neighbours", "model__logit_scale": 0.5,
               "model__tied": True, "model__qkv_bias": True, "model__attention_out_bias": True, "model__mlp_bias": True, "model__residual_scale": 0.5,
               "model__pattern": json.dumps("LG"), "model__kinds": '[{ name = "L", window = 5 }, { name = "G", positions = "none" }]'},
    "gpt_oss": {"model__attention_sinks": True, "model__qkv_bias": True, "model__attention_out_bias": True, "model__expert_bias": True, "model__experts": 4,
                "model__activation": "clamped_silu", "model__gate_limit": 0.05, "model__rope_scaling": "yarn", "model__rope_factor": 4.0,
                "model__rope_original_context": 6, "model__rope_truncate": False, "model__pattern": json.dumps("LG"),
                "model__kinds": '[{ name = "L", window = 5 }, { name = "G" }]'},
    # A first layer without experts; experts by sigmoids and biases that move, of one of two groups, and a shared one without a gate.
    "glm4_moe": {"model__experts": 4, "model__expert_ff_width": 24, "model__shared_ff_width": 48, "model__shared_gate": False, "model__dense_layers": 1,
                 "model__router_scores": "sigmoid", "model__router_scale": 2.5, "model__router_balance": "bias", "model__router_bias_rate": 0.01,
                 "model__expert_groups": 2, "model__rotary_fraction": 0.5, "model__qkv_bias": True},
    # An expert of all tokens that counts as it is, beside experts by a softmax, in a stream of scaled parts, and no positions.
    "granite4": {"model__embedding_scale": 3.0, "model__residual_scale": 0.5, "model__attention_scale": 0.25, "model__logit_scale": 0.5, "model__experts": 4,
                 "model__expert_ff_width": 24, "model__shared_ff_width": 40, "model__shared_gate": False, "model__positions": "none"},
    "minimax_m2": {"model__experts": 4, "model__expert_ff_width": 24, "model__router_scores": "sigmoid", "model__router_balance": "bias",
                   "model__router_bias_rate": 0.01, "model__rotary_fraction": 0.5, "model__qk_norm": True, "model__wide_qk_norm": True},
    # Experts in turns with one block, in layers of other windows.
    "sparse": {"model__experts": 4, "model__expert_ff_width": 24, "model__qk_norm": True, "model__pattern": json.dumps("DLE"),
               "model__kinds": '[{ name = "D", experts = false }, { name = "L", experts = false, window = 5 }, { name = "E", window = 7 }]'},
    # Experts, and more tensor-parallel ranks than heads of keys.
    "experts": {"model__norm_placement": "both", "model__qk_norm": True, "model__wide_qk_norm": True, "model__kv_heads": 1, "model__experts": 4},
}
PIPELINE = {"mesh__pp": 2, "run__lanes": "threads"}
LAYOUTS = {
    "host": [(2, {"zero__stage": 1}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0, "batch__global": 4}), (4, {**PIPELINE, "zero__stage": 2}),
             (2, {**PIPELINE, "pipeline__schedule": "zero_bubble"}), (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}),
             (1, {"activation__recompute": "full", "activation__every": 2})],
    "cuda": [(2, {"zero__stage": 3, "zero__param_persistence_threshold": 0})],
}
NEAR = {"host": [(2, {"mesh__tp": 2}), (2, {"mesh__cp": 2}), (3, {"mesh__cp": 3, "context__method": "ring"})], "cuda": [(2, {"mesh__tp": 2})]}


def name_of(kind, ranks, keys):
    return "-".join([kind, f"ranks{ranks}"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()])


def check_layouts(folder, model, device):
    exact = {**model, "run__reproducible": True}
    folder.train("exact", 1, **exact)
    for ranks, keys in third(LAYOUTS[device], device == "cuda"):
        name = name_of("exact", ranks, keys)
        folder.train(name, ranks, **{**exact, **keys})
        check(f"{name}: the bits of one rank", folder.losses(name) == folder.losses("exact") and folder.hashes(name) == folder.hashes("exact"),
              f"{folder.losses(name)} instead of {folder.losses('exact')}")
    folder.train("resumed", 2, **{**exact, "run__resume": folder.run("exact") + "/checkpoints/step-00000002", "zero__stage": 2})
    check("resumed: the bits of one rank", folder.losses("resumed") == {step: loss for step, loss in folder.losses("exact").items() if step > 2}
          and folder.hashes("resumed") == folder.hashes("exact"))
    fast = {**model, "precision__compute": "fp32"}
    folder.train("fast", 1, **fast)
    over_experts = [(2, {"mesh__ep": 2})] if "model__experts" in model else []
    for ranks, keys in NEAR[device] + over_experts:
        name = name_of("fast", ranks, keys)
        folder.train(name, ranks, **{**fast, **keys})
        pairs = [(folder.losses(name)[step][0], loss[0]) for step, loss in folder.losses("fast").items()]
        check(f"{name}: near one rank", all(abs(a / b - 1) < (1e-5 if device == "host" else 1e-4) for a, b in pairs), str(pairs))


def check_windows(folder):
    """A window as long as the sequences is none, and a short one is another model."""
    plain = {"model__layers": 2, "run__steps": 2, "run__log_every": 1, "batch__sequence_length": 12, "run__reproducible": True}
    for name, window in (("none", 0), ("all", 12), ("beyond", 1000), ("short", 3)):
        folder.train(name, 1, **plain, model__window=window)
    check("a window of all keys has the bits of none", folder.losses("all") == folder.losses("none") == folder.losses("beyond"))
    check("a short one has not", folder.losses("short") != folder.losses("none"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    given = parser.parse_args()
    names = list(MODELS)
    drawn = names if FULL else [names[(DRAW + (given.device == "cuda")) % len(names)]]
    for name in given.models or drawn:
        print(f"kinds: {name}", flush=True)
        with runs.Folder() as folder:
            check_layouts(folder, {**COMMON, **MODELS[name], **(runs.ON_GPUS if given.device == "cuda" else {})}, given.device)
            if given.device == "host" and name == "kinds":
                check_windows(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
