#!/usr/bin/env python3
"""Models of transformers, fine-tuned on prompts and completions here and by a loop of PyTorch: ten steps of AdamW on the mean loss over the tokens of
completions, from the same weights.

    TESSERA=build/host/tessera check_finetuning.py [NAME ...]

Each step takes all samples of the file, so no order of them matters. Losses, gradient norms and the weights after the last step must agree.
Exit status: 0 all agree, 1 not, 77 when torch, transformers or h5py is not installed.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from exports import fail, read_export, read_tensor
from models import DEFAULTS, make_model, model_keys

TESSERA = os.environ.get("TESSERA", "build/host/tessera")
MPIEXEC = os.environ.get("MPIEXEC", "mpiexec")
TOLERANCE = 1e-4
# Of a model: what model.freeze says, and how the names of the same tensors begin in transformers.
FROZEN = {"llama-frozen": (["embedding.*", "layers.0.*", "layers.1.attention.w?", "head.norm"],
                           ("model.embed_tokens.", "model.layers.0.", "model.layers.1.self_attn.", "model.norm."))}
# Of a model: groups of the optimizer, by patterns of our names and by how theirs end.
GROUPS = {"llama-groups": [(["*mlp.w_up", "*mlp.w_gate"], ("up_proj.weight", "gate_proj.weight"), 3e-3, 0.0), (["*norm"], ("norm.weight",), 2e-3, 0.5)]}
LENGTH, STEPS = 48, 10
RATE, BETAS, EPS, DECAY, CLIPPING = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
BYTES = {"vocab": 257}
# name: (keys of models.py, launches: ranks and keys)
MODELS = {
    "llama": ({**DEFAULTS, **BYTES}, ((1, []), (3, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]))),
    "smollm": ({**model_keys("gqa4"), **BYTES, "tied": True}, ((2, ["mesh.pp=2", "zero.stage=1"]),)),
    "qwen2": ({**model_keys("qkv_bias"), **BYTES}, ((2, ["mesh.cp=2", "zero.stage=2"]),)),
    "llama-frozen": ({**DEFAULTS, **BYTES}, ((1, []), (2, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]))),
    "llama-groups": ({**DEFAULTS, **BYTES}, ((1, []), (2, ["zero.stage=3", "mesh.tp=1"]), (2, ["zero.stage=2", "zero.offload_optimizer.device=host"]))),
    "mixtral": ({**model_keys("mixtral"), **BYTES}, ((2, ["mesh.ep=2", "zero.stage=1", "model.router_aux_loss=0", "model.router_z_loss=0"]),)),
}


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        fail(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def make_data(work):
    """The token file, its inputs, and its targets with -100 where they do not count."""
    draw = random.Random(5)
    word = lambda least, most: "".join(draw.choice("abcdefgh ") for _ in range(draw.randrange(least, most)))
    path = os.path.join(work, "pairs.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(24):
            file.write(json.dumps({"prompt": word(4, 30) + "?", "completion": word(2, 20)}) + "\n")
    run([TESSERA, "tokenize", path, work])
    with h5py.File(os.path.join(work, "train.h5")) as file:
        tokens = file["tokens"][:].astype(np.int64)
        counts = np.unpackbits(file["loss_mask"][:], bitorder="little")[:tokens.size].astype(bool)
    samples = (tokens.size - 1) // LENGTH
    inputs = tokens[:samples * LENGTH].reshape(samples, LENGTH)
    targets = np.where(counts, tokens, -100)[1:samples * LENGTH + 1].reshape(samples, LENGTH)
    return os.path.join(work, "train.h5"), torch.from_numpy(inputs), torch.from_numpy(targets)


def of_torch(model, inputs, targets, groups=()):
    """Losses and norms of the steps; the model has the weights after them."""
    rows = [{"params": [], "lr": rate, "weight_decay": decay} for _, _, rate, decay in groups] + [{"params": [], "weight_decay": DECAY}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        mine = [row for row, group in zip(rows, groups) if name.endswith(group[1])]
        (mine[0] if mine else rows[-2] if parameter.dim() > 1 else rows[-1])["params"].append(parameter)
    optimizer = torch.optim.AdamW(rows, lr=RATE, betas=BETAS, eps=EPS)
    rows = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        optimizer.step()
        rows.append((loss.item(), norm.item()))
    return rows


def of_tessera(work, folder, data, samples, ranks, keys):
    """The same, and the weights as an export."""
    deck = os.path.join(work, "deck.toml")
    with open(deck, "w", encoding="utf-8") as file:
        file.write(run([TESSERA, "deck", "from-hf", folder, f"data.train={data}", f"run.steps={STEPS}", f"optimizer.learning_rate={RATE}",
                        "learning_rate.schedule=constant", f"batch.global={samples}", f"batch.sequence_length={LENGTH}", f"optimizer.beta2={BETAS[1]}",
                        f"optimizer.weight_decay={DECAY}", f"optimizer.gradient_clipping={CLIPPING}", "precision.compute=fp32", "run.device=host",
                        "zero.stage=0"]))
    name = os.path.join(work, re.sub("[^a-z0-9_-]", "", "-".join([f"run{ranks}", *keys])))
    train = [TESSERA, "train", deck, f"run.output_dir={name}", *keys]
    run(train if ranks == 1 else [MPIEXEC, "-n", str(ranks), *train])
    with open(os.path.join(name, "metrics.jsonl"), encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    run([TESSERA, "consolidate", os.path.join(name, "checkpoints", "latest"), os.path.join(name, "out")])
    return [(row["loss"], row["grad_norm"], row["targets"]) for row in rows if "loss" in row], read_export(os.path.join(name, "out"))


def check(name, keys, launches, work):
    torch.manual_seed(len(name))
    folder = os.path.join(work, "model")
    made = make_model(keys)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    made.save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
    before = {key: value.detach().clone() for key, value in model.state_dict().items()}
    data, inputs, targets = make_data(work)
    patterns, prefixes = FROZEN.get(name, ([], ()))
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not key.startswith(tuple(prefixes)))
    groups = GROUPS.get(name, [])
    theirs = of_torch(model, inputs, targets, groups)
    tables = ", ".join(f"{{ tensors = {json.dumps(ours)}, learning_rate = {rate}, weight_decay = {decay} }}" for ours, _, rate, decay in groups)
    after, count = model.state_dict(), int((targets != -100).sum())
    good = True
    for ranks, more in launches:
        ours, export = of_tessera(work, folder, data, inputs.shape[0], ranks, [*more, f"model.freeze={json.dumps(patterns)}", f"optimizer.groups=[{tables}]"])
        loss = max(abs(a[0] - b[0]) / b[0] for a, b in zip(ours, theirs))
        norm = max(abs(a[1] - b[1]) / b[1] for a, b in zip(ours, theirs))
        weights = moved = 0.0
        for tensor, row in export.items():
            # Experts are stacked in transformers, where losses and norms speak for them; a softmax over keys hardly feels a bias of all of them, so its
            # gradient is rounding, which Adam makes a step of.
            if tensor not in after or tensor.endswith("k_proj.bias"):
                continue
            values = torch.from_numpy(read_tensor(row).astype(np.float32).reshape(after[tensor].shape))
            weights = max(weights, (torch.linalg.norm(values - after[tensor]) / torch.linalg.norm(after[tensor])).item())
            if tensor.startswith(tuple(prefixes)) and not torch.equal(values, before[tensor]):
                fail(f"{name} on {ranks}: {tensor} is frozen and moved")
            moved = max(moved, (torch.linalg.norm(before[tensor] - after[tensor]) / torch.linalg.norm(after[tensor])).item())
        fine = len(ours) == STEPS and loss < TOLERANCE and norm < TOLERANCE and weights < TOLERANCE < moved and all(row[2] == count for row in ours)
        good &= fine
        print(f"{'ok  ' if fine else 'FAIL'} {name} on {ranks} {' '.join(more)}: {count} of {targets.numel()} targets count; relative differences: loss {loss:.1e}, "
              f"norm {norm:.1e}, weights {weights:.1e} (moved by {moved:.1e})", flush=True)
    return good


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    good = True
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as work:
            good &= check(name, *MODELS[name], work)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
