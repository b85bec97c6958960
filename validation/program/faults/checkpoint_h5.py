#!/usr/bin/env python3
"""checkpoint.h5 as other programs see it: h5dump (and h5py, where it can be imported) shows every tensor in its natural shape with the values of
the consolidated weights, for shards that 3 ranks wrote. And the rules of run.resume."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

DEBIAN_PYTHON = "/usr/bin/python3"  # scripts/setup installs its h5py; another Python may come first on PATH
try:
    import h5py
except ImportError:
    if os.path.exists(DEBIAN_PYTHON) and os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON):
        os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
    h5py = None

COMMON = {"run__steps": 3, "run__reproducible": True, "run__threads": 1, "batch__global": 12, "zero__stage": 3}
good = True


def check(what, condition):
    global good
    if not condition:
        print(f"FAIL {what}")
        good = False
    return condition


def h5dump(folder, dataset):
    """Shape and bytes of a dataset, as h5dump reads them through checkpoint.h5."""
    index = os.path.join(folder, "checkpoint.h5")
    head = subprocess.run(["h5dump", "-H", "-d", dataset, index], capture_output=True, text=True, check=True).stdout
    shape = [int(n) for n in re.search(r"SIMPLE \{ \( ([\d, ]+) \)", head).group(1).split(",")]
    out = os.path.join(folder, "..", "dump.raw")
    subprocess.run(["h5dump", "-d", dataset, "-b", "LE", "-o", out, index], capture_output=True, check=True)
    with open(out, "rb") as file:
        return shape, file.read()


def safetensors(path):
    """name -> (dtype, shape, bytes), after the format's own description: length of the header, JSON header, data."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items() if name != "__metadata__"}


HUGGING_FACE = {
    "embedding.weight": "model.embed_tokens.weight", "head.norm": "model.norm.weight", "head.weight": "lm_head.weight",
    "attention.norm": "input_layernorm.weight", "attention.wq": "self_attn.q_proj.weight", "attention.wk": "self_attn.k_proj.weight",
    "attention.wv": "self_attn.v_proj.weight", "attention.wo": "self_attn.o_proj.weight", "mlp.norm": "post_attention_layernorm.weight",
    "mlp.w_gate": "mlp.gate_proj.weight", "mlp.w_up": "mlp.up_proj.weight", "mlp.w_down": "mlp.down_proj.weight",
}


def hugging_face_name(name):
    layer = re.match(r"layers\.\d+\.", name)
    return f"model.{layer.group()}{HUGGING_FACE[name[layer.end():]]}" if layer else HUGGING_FACE[name]


def to_bf16(data):
    """fp32 bytes to bf16 bytes, rounded to nearest, ties to even."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    return struct.pack(f"<{len(words)}H", *[(w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words])


def consolidate(folder, source, name, *options):
    out = os.path.join(folder.path, name)
    done = subprocess.run([runs.TESSERA, "consolidate", source, out, *options], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAIL consolidate: status {done.returncode}\n{done.stderr}")
    return out


def natural_shapes(folder):
    folder.train("run", 3, **COMMON)
    step = os.path.realpath(folder.latest("run"))
    state = runs.read_state(step)
    check("three shards and tensors cut between them", os.path.exists(step + "/shard-00002.h5") and len(state) >= 60)
    fp32 = safetensors(consolidate(folder, step, "fp32") + "/model.safetensors")
    bf16 = safetensors(consolidate(folder, step, "bf16", "--dtype", "bf16") + "/model.safetensors")
    h5 = consolidate(folder, step, "hdf5", "--format", "hdf5") + "/model.h5"
    weights = [name for group, name in state if group == "master"]
    check(f"consolidated weights are {len(weights)}", sorted(fp32) == sorted(bf16) and len(fp32) == len(weights))
    opened = h5py.File(step + "/checkpoint.h5", "r") if h5py else None
    for (group, name), (shape, data) in state.items():
        dumped = h5dump(step, f"/{group}/{name}")
        check(f"h5dump of /{group}/{name}: shape {dumped[0]}, values as in the shards", dumped == (shape, data))
        if opened:
            read = opened[f"/{group}/{name}"]
            check(f"h5py of /{group}/{name}", list(read.shape) == shape and read[...].astype("<f4").tobytes() == data)
        if group == "master":
            exported = hugging_face_name(name)
            check(f"{name} is {exported} of the export", fp32.get(exported) == ("F32", shape, data))
            check(f"{name} in bf16", bf16.get(exported) == ("BF16", shape, to_bf16(data)))
    check("the weights are not all alike", len({data for _, data in state.values()}) > 20)
    listed = subprocess.run(["h5dump", "-n", h5], capture_output=True, text=True).stdout
    check("model.h5 holds every weight by name", all(name in listed for name in weights))
    print(f"{len(state)} tensors of 3 shards by h5dump{' and h5py' if h5py else ' (h5py cannot be imported)'}: natural shapes, the values of "
          f"the export in fp32 and bf16")


def shared_files(folder):
    """Shards of several ranks in one file."""
    whole = runs.read_state(os.path.realpath(folder.latest("run")))
    folder.train("shared", 3, **COMMON, checkpoint__files=2)
    step = os.path.realpath(folder.latest("shared"))
    check("three shards in two files", sorted(name for name in os.listdir(step) if name.startswith("shard-")) == ["shard-00000.h5", "shard-00001.h5"])
    opened = h5py.File(step + "/checkpoint.h5", "r") if h5py else None
    for (group, name), (shape, data) in whole.items():
        check(f"h5dump of /{group}/{name} from shared files", h5dump(step, f"/{group}/{name}") == (shape, data))
        check(f"h5py of /{group}/{name} from shared files", not opened or opened[f"/{group}/{name}"][...].astype("<f4").tobytes() == data)
    print(f"{len(whole)} tensors of 3 shards in 2 files")


def missing_shard(folder):
    """HDF5 reads what a missing source would hold as the dataset's fill value and reports nothing: it must be no number."""
    whole = runs.read_state(os.path.realpath(folder.latest("run")))
    step = os.path.join(folder.path, "without-a-shard")
    shutil.copytree(os.path.realpath(folder.latest("run")), step)
    os.remove(step + "/shard-00001.h5")
    layout = runs.directory(step + "/checkpoint.h5")["layout"]
    elements = {unit["name"]: unit["elements"] for unit in layout["units"]}
    missing = 0
    for group in layout["groups"]:
        for tensor in layout["tensors"]:
            end = elements[tensor["unit"]]
            first, last = end // 3, 2 * end // 3  # the middle one of three slices
            data = h5dump(step, f"/{group}/{tensor['name']}")[1]
            values, expected = (struct.unpack(f"<{len(data) // 4}f", bytes_) for bytes_ in (data, whole[group, tensor["name"]][1]))
            wrong = [n for n, value in enumerate(values)
                     if (value == value if first <= tensor["offset"] + n < last else value != expected[n])]
            check(f"/{group}/{tensor['name']} without a shard: NaN there and the values elsewhere, not so at {wrong[:5]}", not wrong)
            missing += sum(value != value for value in values)
    check("the missing shard held something", missing > 1000)
    print(f"{missing} elements of a missing shard read as NaN")


def resume_rules(folder):
    before = folder.hashes("run")
    again = folder.train("run", 2, **COMMON)
    check("auto: a run that is done says so and stays", "all 3 steps are done already" in again.stderr and folder.hashes("run") == before)
    refused = folder.train("run", 2, expect=2, run__resume="never", **COMMON)
    check("never: a folder with checkpoints is refused", "run.overwrite=true" in refused.stderr and folder.hashes("run") == before)
    folder.train("run", 2, run__resume="never", run__overwrite=True, **COMMON)
    check("never with run.overwrite: the earlier run is beside it", folder.hashes("run.old-1") == before and folder.hashes("run") == before)
    kept = folder.train("run", 1, run__overwrite=True, **COMMON)
    check("run.overwrite with the same deck goes on", "all 3 steps are done already" in kept.stderr and not os.path.exists(folder.run("run.old-2")))
    folder.train("fresh", 1, run__resume="never", **COMMON)
    check("never in a new folder", folder.hashes("fresh") == before)
    done = folder.train("from", 2, run__resume=folder.latest("run"), **COMMON)
    check("a path to a checkpoint that is at the end", "all 3 steps are done already" in done.stderr)
    folder.train("steps", 1, checkpoint__every=1, checkpoint__keep=0, **COMMON)
    first = folder.run("steps") + "/checkpoints/step-00000001"
    begun = folder.train("branch", 2, run__resume=first, **COMMON)
    check("a path to another run's checkpoint begins with it", "at step 1 of 3" in begun.stderr and folder.hashes("branch") == before)
    again = folder.train("branch", 2, run__resume=first, **COMMON)
    check("the same command goes on with what it saved", "all 3 steps are done already" in again.stderr and "its own" in again.stderr)
    back = folder.train("steps", 2, run__resume=first, **COMMON)
    check("a path to an own checkpoint goes back to it", "at step 1 of 3" in back.stderr and folder.hashes("steps") == before)
    print("run.resume: auto, never and a path do what docs/resume.md says")


def main():
    with runs.Folder() as folder:
        natural_shapes(folder)
        shared_files(folder)
        missing_shard(folder)
        resume_rules(folder)
    print("ok" if good else "FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
