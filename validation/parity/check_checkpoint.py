#!/usr/bin/env python3
"""Opens checkpoint.h5 with h5py alone and compares every tensor of /master with the consolidated weights.

    check_checkpoint.py CHECKPOINT OUT

CHECKPOINT is a step folder or its checkpoint.h5, OUT a folder that `tessera consolidate` wrote. Shapes must be the natural ones and every
bit equal (an export in bf16: equal to the rounded master weights). Names every difference.
Exit status: 0 equal, 1 not, 77 when h5py is not installed.
"""

import argparse
import os
import sys

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from exports import bf16_bits, fail, keys_of_config, read_export, read_json, read_tensor
from names import expert_part, fused_rows, fused_table, tensor_table


def missing_sources(folder, dataset):
    """HDF5 reads zeros where a file of a virtual dataset is missing, without a word: so ask for the files first."""
    files = {source.file_name for source in dataset.virtual_sources()} if dataset.is_virtual else set()
    return files, sorted(f for f in files if f != "." and not os.path.exists(os.path.join(folder, f)))


def difference(master, exported, dtype):
    """What differs, in words, or nothing."""
    if dtype == "F32":
        want, got = master.view(np.uint32), np.ascontiguousarray(exported).view(np.uint32)
    elif dtype == "BF16":
        want, got = bf16_bits(master), exported
    else:
        return f"the export has the dtype {dtype}"
    unequal = np.flatnonzero(want.ravel() != got.ravel())
    if unequal.size == 0:
        return None
    first = np.unravel_index(unequal[0], master.shape)
    width = 8 if dtype == "F32" else 4
    return (f"{unequal.size} of {master.size} values differ, the first at [{', '.join(str(i) for i in first)}]: "
            f"checkpoint {master[first]!r} (0x{want[first]:0{width}x}), export 0x{got[first]:0{width}x}")


def ours_of(values, name, hf_name, rows, keys):
    """What of the values of a tensor of the export the tensor of this name is."""
    if rows:
        return values[rows[1]:rows[2]]
    if hf_name.endswith(("input_linear.weight", "output_linear.weight")):  # a Granite's
        values = values[int(name.split(".")[4])] if ".experts." in name else values
        half = len(values) // 2
        return values[:half] if name.endswith("w_gate") else values[half:] if name.endswith("w_up") else values
    part = expert_part(name, keys)
    if part is None:
        return values
    index, turned = part
    return values[index].T if turned else values[index]


def compare(path, tensors, table, keys):
    """Every difference between the file's /master and the export, and the shard files that it reads."""
    faults, sources = [], set()
    with h5py.File(path) as file:
        if "master" not in file:
            fail(f"{path} has no group /master")
        master = file["master"]
        expected = {name: (hf_name, shape) for name, hf_name, shape in table}
        faults += [f"/master/{name} is not a tensor of this model" for name in master if name not in expected]
        faults += [f"the export has {name}, which is not a tensor of this model" for name in set(tensors) - {hf for hf, _ in fused_table(keys)}]
        for name, (hf_name, shape) in expected.items():
            if name not in master:
                faults.append(f"/master/{name} is missing")
                continue
            rows = fused_rows(hf_name, keys)
            hf_name = rows[0] if rows else hf_name
            if hf_name not in tensors:
                faults.append(f"the export has no {hf_name} (/master/{name})")
                continue
            dataset = master[name]
            files, missing = missing_sources(os.path.dirname(path), dataset)
            sources |= files
            if missing:
                faults.append(f"/master/{name} is mapped onto {', '.join(missing)}, missing beside {path}")
            elif dataset.shape != shape:
                faults.append(f"/master/{name} is {dataset.shape}, its natural shape is {shape}")
            elif (found := ours_of(read_tensor(tensors[hf_name]), name, hf_name, rows, keys)).shape != shape:
                faults.append(f"the export's {hf_name} has {found.shape} of {name}, whose natural shape is {shape}")
            elif dataset.dtype != np.dtype("<f4"):
                faults.append(f"/master/{name} has the dtype {dataset.dtype}, not float32")
            else:
                text = difference(dataset[()], found, tensors[hf_name][1])
                faults += [f"/master/{name}: {text}"] if text else []
    return faults, sources


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("folder")
    arguments = parser.parse_args(words)
    path = arguments.checkpoint
    if os.path.isdir(path):
        path = os.path.join(path, "checkpoint.h5")
    path = os.path.realpath(path)  # `latest` is a link
    if not os.path.exists(path):
        fail(f"{path} is missing")
    config = read_json(os.path.join(arguments.folder, "config.json"))
    keys = keys_of_config(config)
    table = tensor_table(keys)
    try:
        faults, sources = compare(path, read_export(arguments.folder), table, keys)
    except OSError as error:
        fail(f"{path}: {error}")
    for fault in faults:
        print(fault)
    print(f"{path}: {len(faults)} differences" if faults else f"{path}: {len(table)} tensors over {len(sources)} shard files equal the export")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
