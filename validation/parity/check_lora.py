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
    import numpy as np
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from check_finetuning import BETAS, BYTES, CLIPPING, DECAY, LENGTH, MPIEXEC, RATE, STEPS, TESSERA, TOLERANCE, make_data, of_torch, run
from exports import fail, read_export, read_tensor
from models import DEFAULTS, make_model, model_keys

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: (keys of models.py, PEFT's configuration, launches: ranks and keys)
MODELS = {
    "llama": ({**DEFAULTS, **BYTES}, {"r": 8, "lora_alpha": 12, "target_modules": ALL},
              ((1, []), (3, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]), (2, ["mesh.pp=2"]))),
    "smollm": ({**model_keys("gqa4"), **BYTES, "tied": True}, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
               ((1, []), (4, ["mesh.tp=4"]), (2, ["mesh.cp=2", "zero.stage=2"]))),
    "qwen2": ({**model_keys("qkv_bias"), **BYTES}, {"r": 3, "lora_alpha": 3, "target_modules": ["model.layers.1.self_attn.o_proj", "model.layers.0.mlp.down_proj"]}, ((1, []),)),
    "mixtral": ({**model_keys("mixtral"), **BYTES}, {"r": 4, "lora_alpha": 8, "target_modules": ALL[:4]}, ((2, ["mesh.ep=2", "model.router_aux_loss=0", "model.router_z_loss=0"]),)),
}


def of_tessera(work, base, adapter, config, data, samples, ranks, keys):
    """Losses, norms and counts of the steps, the adapter's folder and the merged model's."""
    targets = [re.sub(r"^model\.layers\.(\d+)\.self_attn\.(.)_proj", r"layers.\1.attention.w\2", re.sub(r"^model\.layers\.(\d+)\.mlp\.(\w+)_proj", r"layers.\1.mlp.w_\2", t))
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
    model = peft.get_peft_model(load(base), peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
    model.save_pretrained(adapter)
    before = adapter_of(model)
    (data,), _, texts = make_data(work, "rows")
    theirs = of_torch(model, texts)
    after, count = adapter_of(model), sum(int((targets != -100).sum()) for _, targets in texts)
    merged_theirs = {key: value.detach().clone() for key, value in model.merge_and_unload().state_dict().items()}
    moved, good = worst(before, after), True
    for ranks, more in launches:
        ours, ours_adapter, ours_merged = of_tessera(work, base, adapter, config, data, len(texts), ranks, more)
        loss = max(abs(a[0] - b[0]) / b[0] for a, b in zip(ours, theirs))
        norm = max(abs(a[1] - b[1]) / b[1] for a, b in zip(ours, theirs))
        loaded = peft.PeftModel.from_pretrained(load(base), ours_adapter)  # as a user of PEFT would
        weights = worst(adapter_of(loaded), after)
        merged = {key: torch.from_numpy(read_tensor(row).astype(np.float32)).reshape(merged_theirs[key].shape) for key, row in read_export(ours_merged).items() if key in merged_theirs}
        if len(merged) < len(made.state_dict()) * 0.6:
            fail(f"{name}: {len(merged)} tensors of the merged model are known to transformers")
        whole = worst(merged, {key: merged_theirs[key] for key in merged})
        fine = len(ours) == STEPS and max(loss, norm, weights, whole) < TOLERANCE < moved and all(row[2] == count for row in ours)
        good &= fine
        print(f"{'ok  ' if fine else 'FAIL'} {name} on {ranks} {' '.join(more)}: relative differences: loss {loss:.1e}, norm {norm:.1e}, adapter {weights:.1e} (moved by {moved:.1e}), "
              f"merged model {whole:.1e}", flush=True)
    return good


def main():
    warnings.filterwarnings("ignore", category=FutureWarning)  # transformers, of its own calls
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    good = True
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as work:
            good &= check(name, *MODELS[name], work)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
