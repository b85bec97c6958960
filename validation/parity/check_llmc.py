#!/usr/bin/env python3
"""Checkpoints of llm.c: a GPT-2 of transformers, written as llm.c writes it, is imported, gives its tensors back to the bit, and is trained for ten steps
beside a loop of PyTorch.

    TESSERA=build/host/tessera check_llmc.py

Each step takes all sequences, so no order of them matters. Exit status: 0 all agree, 1 not, 77 when torch or transformers is not installed.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from exports import bf16_bits, fail, read_export, read_tensor
from models import make_model, model_keys

TESSERA = os.environ.get("TESSERA", "build/host/tessera")
TOLERANCE = 1e-4  # of losses and norms, relative
VOCAB, PADDED, CONTEXT, LENGTH, SAMPLES, STEPS = 61, 64, 40, 32, 4, 10
RATE, BETAS, DECAY, CLIPPING = 1e-3, (0.9, 0.95), 0.1, 1.0
OF_LAYERS = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
             "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")


def run(*arguments, status=0):
    done = subprocess.run([TESSERA, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode != status:
        fail(f"tessera {' '.join(arguments)}: status {done.returncode}\n{done.stderr}")
    return done.stdout + done.stderr


def write_llmc(path, model, dtype):
    """256 numbers, then each tensor of all layers; matrices (out, in), and rows of no token behind the embedding's."""
    config, state = model.config, model.state_dict()
    narrow = (lambda values: values) if dtype == "F32" else bf16_bits
    header = [20240326, 3 if dtype == "F32" else 5, config.n_positions, config.vocab_size, config.n_layer, config.n_head, config.n_embd, PADDED]
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))

        def put(values):
            file.write(narrow(np.ascontiguousarray(values, np.float32)).tobytes())

        put(np.concatenate([state["transformer.wte.weight"].numpy(), np.full((PADDED - config.vocab_size, config.n_embd), 7.0, np.float32)]))
        put(state["transformer.wpe.weight"].numpy())
        for name in OF_LAYERS:
            for layer in range(config.n_layer):
                values = state[f"transformer.h.{layer}.{name}"].numpy()
                put(values.T if values.ndim == 2 else values)
        put(state["transformer.ln_f.weight"].numpy())
        put(state["transformer.ln_f.bias"].numpy())


def random_model():
    torch.manual_seed(1)
    model = make_model({**model_keys("gpt2"), "vocab": VOCAB, "ff_width": 128, "learned_positions": CONTEXT})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).to(torch.bfloat16))
    return model


def of_torch(model, tokens):
    """Losses and norms of the steps."""
    inputs, targets = (torch.from_numpy(np.stack([tokens[i * LENGTH + of:(i + 1) * LENGTH + of] for i in range(SAMPLES)]).astype(np.int64)) for of in (0, 1))
    rows = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer, steps = torch.optim.AdamW(rows, lr=RATE, betas=BETAS, eps=1e-8), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(input_ids=inputs, use_cache=False).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING).item()
        optimizer.step()
        steps.append((loss.item(), norm))
    return steps


def check_import(work, file, model, dtype):
    """The checkpoint of an import, whose export has the model's own bits."""
    base, out = os.path.join(work, "base-" + dtype), os.path.join(work, "out-" + dtype)
    run("import", file, base)
    run("consolidate", base + "/checkpoints/latest", out, "--dtype", "fp32" if dtype == "F32" else "bf16")
    state, export, bad = model.state_dict(), read_export(out), []
    for name, row in export.items():
        values = state[name].numpy()
        want = values.view(np.uint32) if dtype == "F32" else bf16_bits(values)
        if not np.array_equal(want, read_tensor(row).view(want.dtype)):
            bad.append(name)
    missing = {name for name in state if name != "lm_head.weight"} ^ export.keys()
    print(f"{'FAIL' if bad or missing else 'ok  '} import of {dtype}: {len(export)} tensors; other bits: {bad}; in one alone: {sorted(missing)}", flush=True)
    return base, not bad and not missing


def check_training(work, file, base, model, tokens):
    data, deck, good = os.path.join(work, "tokens.bin"), os.path.join(work, "deck.toml"), True
    tokens.astype("<u2").tofile(data)
    with open(deck, "w", encoding="utf-8") as out:
        out.write(run("deck", "from-hf", file, f"data.train={data}", f"run.steps={STEPS}", f"batch.global={SAMPLES}", f"batch.sequence_length={LENGTH}",
                      f"optimizer.learning_rate={RATE}", "learning_rate.schedule=constant", f"optimizer.beta2={BETAS[1]}", f"optimizer.weight_decay={DECAY}",
                      f"optimizer.gradient_clipping={CLIPPING}", "precision.compute=fp32", "run.device=host", "run.log_every=1"))
    theirs = of_torch(model, tokens)
    for how, begin in (("run.init", []), ("run.resume", ["run.init=\"\"", f"run.resume={base}/checkpoints/latest"])):
        folder = os.path.join(work, how)
        run("train", deck, f"run.output_dir={folder}", *begin)
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
            ours = [(row["loss"], row["grad_norm"]) for row in map(json.loads, lines) if "loss" in row]
        loss, norm = (max(abs(a[n] / b[n] - 1) for a, b in zip(ours, theirs)) for n in (0, 1))
        fine = len(ours) == STEPS and max(loss, norm) < TOLERANCE and theirs[-1][0] < theirs[0][0]
        good &= fine
        print(f"{'ok  ' if fine else 'FAIL'} ten steps by {how}: loss {ours[0][0]:.6f} -> {ours[-1][0]:.6f}; relative differences: loss {loss:.1e}, norm {norm:.1e}",
              flush=True)
    return good


def main():
    torch.set_num_threads(1)
    model = random_model()
    tokens = np.random.default_rng(1).integers(0, VOCAB, SAMPLES * LENGTH + 1)
    with tempfile.TemporaryDirectory() as work:
        files = {dtype: os.path.join(work, f"gpt2_{dtype}.bin") for dtype in ("F32", "BF16")}
        good, bases = True, {}
        for dtype, file in files.items():
            write_llmc(file, model, dtype)
            bases[dtype], fine = check_import(work, file, model, dtype)
            good &= fine
        good &= check_training(work, files["F32"], bases["F32"], model, tokens)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
