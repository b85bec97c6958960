#!/usr/bin/env python3
"""Writes validation/parity/fixtures/NAME.h5: what PyTorch and transformers compute for a few tiny models, in fp32 on one CPU thread.

    make_fixtures.py [NAME ...]      writes them (all without NAME); the same versions on the same CPU type write the same bytes
    make_fixtures.py --check         computes them again and compares with the stored files, writing nothing

The layout of a file is described in README.md beside this script.
"""

import argparse
import json
import io
import os
import sys

# One thread and one instruction set, so that the sums run in one order wherever the script runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
os.environ.setdefault("MKL_CBWR", "AVX2")

import h5py
import numpy as np
import torch
import transformers

from models import SHAPES, RouterLosses, make_model, model_keys, our_parameters, whole_parameters
from names import model_toml

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
BATCH, STEPS = 2, 10
ADAMW = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "gradient_clipping": 1.0}


def draw_tokens(generator, batches, length, vocab):
    """Skewed draws, so that tokens repeat within a sequence; token 0 and the last token always occur."""
    tokens = np.floor(vocab * generator.random((batches, BATCH, length + 1)) ** 2.0).astype(np.int32)
    tokens[:, 0, 1], tokens[:, -1, 2] = 0, vocab - 1
    return tokens[..., :-1].copy(), tokens[..., 1:].copy()


def fill_weights(parameters, generator, scales, one_plus=False):
    """Weights large enough that attention is far from uniform and every gradient matters; all of them exact in bf16."""
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        noise = torch.from_numpy(generator.standard_normal(shape).astype(np.float32))
        if name.endswith("norm"):
            value = (0.0 if one_plus else 1.0) + 0.2 * noise
        elif len(shape) == 1:
            value = 0.3 * noise
        else:
            value = noise * scales.get(name, shape[1] ** -0.5)
        with torch.no_grad():
            parameter.copy_(value.to(torch.bfloat16).to(torch.float32))


def mean_loss(model, tokens, targets, routers):
    """Of tokens, its sum with what routers lose, and logits."""
    ids = torch.from_numpy(tokens).long()
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.from_numpy(targets).long().reshape(-1))
    return loss, loss + routers.take(), logits


def copies(parameters):
    return {name: parameter.detach().numpy().copy() for name, parameter in parameters.items()}


def train(model, parameters, tokens, targets, routers):
    """Ten AdamW steps. Decay reaches every matrix (embedding and head too), no norm and no bias."""
    matrices = whole_parameters({name: p for name, p in parameters.items() if p.dim() > 1})
    vectors = whole_parameters({name: p for name, p in parameters.items() if p.dim() == 1})
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": ADAMW["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=ADAMW["learning_rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False, fused=False)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, whole, _ = mean_loss(model, tokens[step], targets[step], routers)
        whole.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(whole_parameters(parameters), ADAMW["gradient_clipping"], foreach=False).item())
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses, np.float32), np.array(norms, np.float32)


def compute(name):
    """All datasets of one fixture: path -> array."""
    seed, length, scales, _ = SHAPES[name]
    keys = model_keys(name)
    generator = np.random.Generator(np.random.PCG64(seed))
    torch.manual_seed(seed)
    model = make_model(keys)
    parameters = our_parameters(model, keys)
    fill_weights(parameters, generator, {"embedding.weight": scales[0], "head.weight": scales[1]}, keys.get("norm_form") == "one_plus_weight")
    data = {f"weights/{n}": a for n, a in copies(parameters).items()}

    tokens, targets = draw_tokens(generator, 1, length, keys["vocab"])
    data["tokens"], data["targets"] = tokens[0], targets[0]
    routers = RouterLosses(model, keys)
    loss, whole, logits = mean_loss(model, tokens[0], targets[0], routers)
    whole.backward()
    data["logits"], data["loss"] = logits.detach().numpy().copy(), np.float32(loss.item())
    data |= {f"gradients/{n}": p.grad.numpy().copy() for n, p in parameters.items() if p.grad is not None}

    tokens, targets = draw_tokens(generator, STEPS, length, keys["vocab"])
    data["steps/tokens"], data["steps/targets"] = tokens, targets
    data["steps/losses"], data["steps/grad_norms"] = train(model, parameters, tokens, targets, routers)
    data |= {f"final_weights/{n}": a for n, a in copies(parameters).items()}
    if routers.hooks:
        print(f"{name}: the closest choice of an expert is by {routers.least_gap:.3g}")
    for path, array in data.items():
        if not np.all(np.isfinite(array)):
            raise SystemExit(f"{name}: {path} holds a value that is not finite")
    return keys, data


def write(target, name, keys, data):
    with h5py.File(target, "w", libver=("v110", "v110")) as file:
        for key, value in {**keys, **ADAMW}.items():
            value = json.dumps(value) if isinstance(value, list) else value
            file.attrs[key] = np.bytes_(value) if isinstance(value, str) else np.int64(value) if isinstance(value, int) else np.float64(value)
        texts = {"name": name, "model_toml": model_toml(keys), "torch": torch.__version__, "transformers": transformers.__version__}
        for key, value in texts.items():
            file.attrs[key] = np.bytes_(value)
        file.attrs["seed"] = np.int64(SHAPES[name][0])
        for path, array in data.items():
            small = np.size(array) < 64  # filters cost more than they save there
            options = {} if small else {"compression": "gzip", "compression_opts": 9, "shuffle": True, "chunks": np.shape(array)}
            file.create_dataset(path, data=array, track_times=False, **options)


def relative_error(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))


def check(name, keys, data):
    """Compares with the stored file; returns the number of datasets that moved by more than fp32 noise."""
    path, faults, same, worst = os.path.join(FOLDER, f"{name}.h5"), 0, 0, (0.0, "-")
    with h5py.File(path) as file:
        stored = []
        file.visititems(lambda n, o: stored.append(n) if isinstance(o, h5py.Dataset) else None)
        for missing in sorted(set(stored) ^ set(data)):
            print(f"{path}: {missing} is {'only in the file' if missing in stored else 'not in the file'}")
            faults += 1
        for key, value in keys.items():
            have = file.attrs[key].decode() if isinstance(file.attrs[key], bytes) else file.attrs[key]
            if have != (json.dumps(value) if isinstance(value, list) else value):
                print(f"{path}: attribute {key} is {have}, the script says {value}")
                faults += 1
        for dataset in set(stored) & set(data):
            array = file[dataset][()]
            same += np.array_equal(array, data[dataset])
            error = relative_error(array, data[dataset]) if np.shape(array) == np.shape(data[dataset]) else float("inf")
            worst = max(worst, (error, dataset))
            if error > 1e-4:  # of experts' weights after ten steps, on a processor of another kind
                print(f"{path}: {dataset} differs by {error:.1e}")
                faults += 1
    print(f"{name}: {same} of {len(stored)} datasets bit-equal, worst {worst[0]:.1e} ({worst[1]})")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in SHAPES:
            parser.error(f"no shape {name}; there are {', '.join(SHAPES)}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    faults = total = 0
    for name in arguments.names or SHAPES:
        keys, data = compute(name)
        if arguments.check:
            faults += check(name, keys, data)
            continue
        os.makedirs(FOLDER, exist_ok=True)
        buffer = io.BytesIO()
        write(buffer, name, keys, data)
        with open(os.path.join(FOLDER, f"{name}.h5"), "wb") as file:
            file.write(buffer.getvalue())
        total += len(buffer.getvalue())
        losses, norms = data["steps/losses"], data["steps/grad_norms"]
        print(f"{name}: {len(buffer.getvalue()) / 1024:.0f} KiB, loss {float(data['loss']):.4f}, steps {losses[0]:.3f} -> {losses[-1]:.3f}, "
              f"gradient norm {norms.min():.2f} to {norms.max():.2f}")
    if not arguments.check:
        print(f"{total / 1024:.0f} KiB in all; torch {torch.__version__}, transformers {transformers.__version__}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
