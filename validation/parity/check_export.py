#!/usr/bin/env python3
"""Loads an exported folder with transformers and compares its logits with stored ones.

    check_export.py OUT REFERENCE.h5 [--tolerance 1e-5]

OUT holds config.json and model.safetensors (or model-0000N-of-0000M.safetensors with their index). REFERENCE holds /tokens (B, T) and
/logits (B, T, V): a file of fixtures/, or what Tessera computed. The error is the 2-norm of the difference over the 2-norm of the reference.
Exit status: 0 equal, 1 not, 77 when torch, transformers or h5py is not installed.
"""

import argparse
import os
import sys

try:
    import h5py
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from exports import fail, read_export, read_json


def load(folder):
    read_json(os.path.join(folder, "config.json"))
    read_export(folder)  # names what is wrong with the files better than the loader does
    transformers.logging.set_verbosity_error()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, local_files_only=True)
    except Exception as error:
        fail(f"{folder}: transformers {transformers.__version__} does not load it: {type(error).__name__}: {error}")
    for kind, text in (("missing_keys", "misses"), ("unexpected_keys", "does not know"), ("mismatched_keys", "finds the wrong shape in")):
        if info.get(kind):
            fail(f"{folder}: transformers {text} {', '.join(str(key) for key in sorted(info[kind], key=str))}")
    return model.eval()


def read_reference(path):
    try:
        with h5py.File(path) as file:
            for name in ("tokens", "logits"):
                if name not in file:
                    fail(f"{path} has no dataset /{name}")
            return file["tokens"][()], file["logits"][()].astype(np.float64)
    except OSError as error:
        fail(f"{path}: {error}")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("reference")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args(words)
    tokens, want = read_reference(arguments.reference)
    model = load(arguments.folder)
    if tokens.max() >= model.config.vocab_size:
        fail(f"{arguments.reference}: token {tokens.max()}, but {arguments.folder} has vocab_size {model.config.vocab_size}")
    with torch.no_grad():
        got = model(input_ids=torch.from_numpy(tokens.astype(np.int64)), use_cache=False).logits.double().numpy()
    if got.shape != want.shape:
        fail(f"the model's logits are {got.shape}, {arguments.reference} has {want.shape}")
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    place = np.unravel_index(np.argmax(np.abs(got - want)), want.shape)
    good = bool(error < arguments.tolerance)  # false for NaN
    print(f"{arguments.folder}: {type(model).__name__}, logits {'agree' if good else 'differ'}: relative error {error:.2e}, "
          f"tolerance {arguments.tolerance:.0e}, worst at sequence {place[0]}, position {place[1]}, token {place[2]}: "
          f"{got[place]:.7g} for {want[place]:.7g}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
