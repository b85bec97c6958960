#!/usr/bin/env python3
"""Low-rank adapters of PEFT, trained on prompts and completions here and by a loop of PyTorch: ten steps of AdamW from the same model and the same adapter,
which PEFT has written. Losses, gradient norms, the adapter after the last step (`tessera consolidate --adapter`, which PEFT then loads) and the model with
the adapter in its weights must agree.

    TESSERA=build/host/tessera check_lora.py [NAME ...]

Exit status: 0 all agree, 1 not, 77 when torch, transformers, peft or h5py is not installed.
"""

import json
import os
import re
import sys
import tempfile
import warnings

try:
    import h5py  # noqa: F401: check_finetuning needs it
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from check_finetuning import BETAS, BYTES, CLIPPING, DECAY, LENGTH, MPIEXEC, RATE, STEPS, TESSERA, TOLERANCE, adamw, make_data, of_torch, run
from models import DEFAULTS, make_model, model_keys

# Beside the experts, which transformers stacks in tensors of a layer, the peer's adapters are parametrizations of these; their names in files are those that
# PEFT gave them when experts were modules, and that it still reads.
STILL_ROUTER = ["model.router_aux_loss=0", "model.router_z_loss=0"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: (keys of models.py, PEFT's configuration, launches: ranks and keys)
MODELS = {
    "llama": ({**DEFAULTS, **BYTES}, {"r": 8, "lora_alpha": 12, "target_modules": ALL},
              ((1, []), (3, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]), (2, ["mesh.pp=2"]))),
    "smollm": ({**model_keys("gqa4"), **BYTES, "tied": True}, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
               ((1, []), (4, ["mesh.tp=4"]), (2, ["mesh.cp=2", "zero.stage=2"]))),
    "qwen2": ({**model_keys("qkv_bias"), **BYTES}, {"r": 3, "lora_alpha": 3, "target_modules": ["model.layers.1.self_attn.o_proj", "model.layers.0.mlp.down_proj"]}, ((1, []),)),
    "mixtral": ({**model_keys("mixtral"), **BYTES}, {"r": 4, "lora_alpha": 8, "target_modules": ALL[:4]}, ((2, ["mesh.ep=2", "model.router_aux_loss=0", "model.router_z_loss=0"]),)),
    "mixtral experts": ({**model_keys("mixtral"), **BYTES}, {"r": 4, "lora_alpha": 8, "target_modules": ALL[:4], "experts": ("w1", "w3", "w2")},
                        ((1, STILL_ROUTER), (2, ["mesh.ep=2", *STILL_ROUTER]), (2, ["zero.stage=3", "zero.param_persistence_threshold=0", *STILL_ROUTER]))),
    # PEFT 0.21 finds no experts of a Qwen where transformers stacks them: the training and the merged model are compared.
    "qwen moe all": ({**model_keys("qwen_moe"), **BYTES},
                     {"r": 3, "lora_alpha": 9, "target_modules": ALL[:4], "experts": ("gate_proj", "up_proj", "down_proj"), "shared": True, "use_rslora": True},
                     ((1, STILL_ROUTER), (2, ["mesh.ep=2", *STILL_ROUTER]), (2, ["mesh.tp=2", *STILL_ROUTER]))),
}


class Delta(torch.nn.Module):
    """Adapters of the matrices that a tensor of experts (E, sum of rows, K) stacks: rows of each matrix."""

    def __init__(self, experts, rows, inputs, rank, scale):
        super().__init__()
        self.a = torch.nn.ParameterList([torch.randn(experts, rank, inputs) * 0.1 for _ in rows])
        self.b = torch.nn.ParameterList([torch.randn(experts, n, rank) * 0.1 for n in rows])
        self.scale = scale

    def forward(self, weight):
        return weight + self.scale * torch.cat([b @ a for a, b in zip(self.a, self.b)], dim=1)


def expert_modules(model):
    return [(name, module) for name, module in model.named_modules() if name.endswith(".mlp.experts")]


def adapt_experts(model, config):
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    for _, experts in expert_modules(model):
        for name, parts in (("gate_up_proj", 2), ("down_proj", 1)):
            weight = getattr(experts, name).requires_grad_(False)
            delta = Delta(weight.shape[0], [weight.shape[1] // parts] * parts, weight.shape[2], config["r"], scale)
            torch.nn.utils.parametrize.register_parametrization(experts, name, delta)


def adapters_of_experts(model, names):
    found = {}
    for path, experts in expert_modules(model):
        block = path.replace(".mlp.experts", ".block_sparse_moe.experts") if names[0] == "w1" else path
        for name, leaves in (("gate_up_proj", names[:2]), ("down_proj", names[2:])):
            delta = experts.parametrizations[name][0]
            for leaf, a, b in zip(leaves, delta.a, delta.b):
                for e in range(a.shape[0]):
                    found[f"{block}.{e}.{leaf}.lora_A.weight"] = a[e].detach().clone()
                    found[f"{block}.{e}.{leaf}.lora_B.weight"] = b[e].detach().clone()
    return found


def of_tessera(work, base, adapter, config, data, samples, ranks, keys):
    """Losses, norms and counts of the steps, the adapter's folder and the merged model's."""
    targets = ["all-linear"] if "experts" in config else [re.sub(r"^model\.layers\.(\d+)\.self_attn\.(.)_proj", r"layers.\1.attention.w\2", re.sub(r"^model\.layers\.(\d+)\.mlp\.(\w+)_proj", r"layers.\1.mlp.w_\2", t))
               for t in config["target_modules"]]
    deck = os.path.join(work, "deck.toml")
    with open(deck, "w", encoding="utf-8") as file:
        file.write(run([TESSERA, "deck", "from-hf", base, f"data.train={data}", f"run.steps={STEPS}", f"optimizer.learning_rate={RATE}", "learning_rate.schedule=constant",
                        f"batch.global={samples}", f"batch.sequence_length={LENGTH}", f"optimizer.beta2={BETAS[1]}", f"optimizer.weight_decay={DECAY}",
                        f"optimizer.gradient_clipping={CLIPPING}", "precision.compute=fp32", "run.device=host", "zero.stage=0", f"lora.rank={config['r']}",
                        f"lora.alpha={config['lora_alpha']}", f"lora.targets={json.dumps(targets)}", f"lora.scaling={'rslora' if config.get('use_rslora') else 'standard'}",
                        f"lora.init={adapter}"]))
    name = os.path.join(work, re.sub("[^a-z0-9_-]", "", "-".join([f"run{ranks}", *keys])))
    train = [TESSERA, "train", deck, f"run.output_dir={name}", *keys]
    run(train if ranks == 1 else [MPIEXEC, "-n", str(ranks), *train])
    with open(os.path.join(name, "metrics.jsonl"), encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    step = os.path.join(name, "checkpoints", "latest")
    run([TESSERA, "consolidate", step, os.path.join(name, "merged")])
    run([TESSERA, "consolidate", step, os.path.join(name, "adapter"), "--adapter"])
    return [(row["loss"], row["grad_norm"], row["targets"]) for row in rows if "loss" in row], os.path.join(name, "adapter"), os.path.join(name, "merged")


def load(base):
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager", local_files_only=True)


def adapter_of(model):
    return {name: value.detach().clone() for name, value in peft.get_peft_model_state_dict(model).items()}


def whole_adapter_of(model, experts):
    of_modules = {name: value for name, value in adapter_of(model).items() if "parametrizations" not in name}
    return {**of_modules, **(adapters_of_experts(model, experts) if experts else {})}


def merged_of(model):
    """The state of the model with its adapters in its weights."""
    plain = model.merge_and_unload()
    for _, module in expert_modules(plain):
        for name in ("gate_up_proj", "down_proj") if torch.nn.utils.parametrize.is_parametrized(module) else ():
            torch.nn.utils.parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return {key: value.detach().clone() for key, value in plain.state_dict().items()}


def worst(ours, theirs):
    return max((torch.linalg.norm(ours[name] - value) / torch.linalg.norm(value)).item() for name, value in theirs.items())


def check(name, keys, config, launches, work):
    torch.manual_seed(len(name))
    base, adapter = os.path.join(work, "model"), os.path.join(work, "adapter")
    made = make_model(keys)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    made.save_pretrained(base)
    experts = config.get("experts", ())
    of_peft = {key: value for key, value in config.items() if key not in ("experts", "shared")}
    if config.get("shared"):
        of_peft["target_modules"] = [*of_peft["target_modules"], *(f"model.layers.{layer}.mlp.shared_expert.{leaf}" for layer in range(keys["layers"]) for leaf in experts)]
    model = peft.get_peft_model(load(base), peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **of_peft))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
    model.save_pretrained(adapter)
    if experts:
        adapt_experts(model, config)
        save_file({key: value.contiguous() for key, value in whole_adapter_of(model, experts).items()}, os.path.join(adapter, "adapter_model.safetensors"))
    before = whole_adapter_of(model, experts)
    (data,), _, texts = make_data(work, "rows")
    theirs = of_torch(model, texts, [], adamw)
    after, count = whole_adapter_of(model, experts), sum(int((targets != -100).sum()) for _, targets in texts)
    merged_theirs = merged_of(model)
    moved, good = worst(before, after), True
    for ranks, more in launches:
        ours, ours_adapter, ours_merged = of_tessera(work, base, adapter, config, data, len(texts), ranks, more)
        loss = max(abs(a[0] - b[0]) / b[0] for a, b in zip(ours, theirs))
        norm = max(abs(a[1] - b[1]) / b[1] for a, b in zip(ours, theirs))
        weights = worst(load_file(os.path.join(ours_adapter, "adapter_model.safetensors")), after)
        merged = load(ours_merged)
        if not config.get("shared"):  # as a user of PEFT would
            loaded, inputs = peft.PeftModel.from_pretrained(load(base), ours_adapter), texts[0][0]
            with torch.no_grad():
                weights = max(weights, worst({"logits": loaded(input_ids=inputs).logits}, {"logits": merged(input_ids=inputs).logits}))
        whole = worst(merged.state_dict(), merged_theirs)
        fine = len(ours) == STEPS and max(loss, norm, weights, whole) < TOLERANCE < moved and all(row[2] == count for row in ours)
        good &= fine
        print(f"{'ok  ' if fine else 'FAIL'} {name} on {ranks} {' '.join(more)}: relative differences: loss {loss:.1e}, norm {norm:.1e}, adapter {weights:.1e} (moved by {moved:.1e}), "
              f"merged model {whole:.1e}", flush=True)
    return good


def main():
    warnings.filterwarnings("ignore", category=FutureWarning)  # transformers, of its own calls
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="peft")  # of patterns that it makes itself
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    good = True
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as work:
            good &= check(name, *MODELS[name], work)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
