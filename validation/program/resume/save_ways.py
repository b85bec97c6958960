#!/usr/bin/env python3
"""Fewer files than ranks (checkpoint.files) and saves by way of a disk of the node (checkpoint.staging): each checkpoint has the bits of one that every rank
wrote its own file of, in as many files as were asked for; other layouts go on from it; a node's disk that fails costs no save and no bit. Saves
of weights alone (checkpoint.weights_every). And what no step changes (model.freeze), which is written once a start.
    save_ways.py LIBRARY [--device host|cuda]      LIBRARY: fault_points.so"""
import argparse
import os
import re
import shutil
import subprocess
import sys

import runs

check = runs.Checks()
STEPS = 4
COMMON = {"batch__global": 12, "run__steps": STEPS, "checkpoint__every": 1, "checkpoint__keep": 0, "run__reproducible": True,
          "learning_rate__schedule": "constant"}
OFFLOADED = {"zero__stage": 2, "zero__offload_optimizer__device": "nvme"}
# Ranks, keys of the layout, keys of the save, ranks of a node, files of a checkpoint
WAYS = {
    "host": [
        (4, {"zero__stage": 3}, {"files": "node"}, 2, 2),
        (3, {"zero__stage": 1}, {"files": 1, "async": True}, 3, 1),
        (4, {"mesh__tp": 2, "zero__stage": 2}, {"files": 3}, 4, 3),
        (4, {"mesh__pp": 2, "zero__stage": 1}, {"files": "node", "staging": True}, 3, 2),
        (2, {"zero__stage": 0}, {"staging": True}, 2, 2),
        (2, OFFLOADED, {"files": "node", "staging": True}, 2, 1),
        (2, {"zero__stage": 2}, {"files": 9}, 2, 2),
        (1, {}, {"files": "node", "staging": True}, 1, 1),
    ],
    "cuda": [
        (2, {"zero__stage": 3, "zero__param_persistence_threshold": 0}, {"files": "node", "staging": True}, 2, 1),
        (2, {"zero__stage": 1}, {"files": 1, "async": True}, 2, 1),
    ],
}


def saved(folder, name):
    """Digests of the state of every checkpoint of a run."""
    root = folder.run(name) + "/checkpoints"
    return {step: runs.state_digests(f"{root}/{step}") for step in sorted(os.listdir(root)) if step.startswith("step-")}


def save_keys(way, disk):
    return {f"checkpoint__{key}": disk if key == "staging" else value for key, value in way.items()}


def check_way(folder, number, case, common, references, disk):
    ranks, layout, way, of_node, files = case
    bits = {key: value for key, value in layout.items() if key == "mesh__tp"}  # what bits depend on
    if str(bits) not in references:
        folder.train(f"reference{bits}", 2, **common, **bits)
        references[str(bits)] = saved(folder, f"reference{bits}")
    reference = references[str(bits)]
    what = f"{ranks} ranks, {layout}, {way}"
    name = f"run{number}"
    os.environ["TESSERA_RANKS_PER_NODE"] = str(of_node)
    done = folder.train(name, ranks, **common, **layout, **save_keys(way, disk))
    ours = saved(folder, name)
    check(f"{what}: every checkpoint has the bits of the plain one",
          list(ours) == list(reference) and all(runs.same(what, ours[step], reference[step]) for step in ours))
    inside = os.listdir(folder.latest(name))
    check(f"{what}: {files} files", len([file for file in inside if file.startswith("shard-")]) == files, str(inside))
    beside = "staging" in way or "async" in way
    lines = re.findall(r"saved \S+ \(\S+ \S+ in \S+ s while steps continued, after they had waited (\S+) s\)", done.stdout + done.stderr)
    check(f"{what}: the log tells whether steps waited", len(lines) == (STEPS if beside else 0), done.stdout + done.stderr)
    verified = runs.tessera("verify", folder.run(name))
    check(f"{what}: tessera verify", verified.returncode == 0, verified.stdout + verified.stderr)
    if "staging" in way:
        check(f"{what}: the node's disk is left empty", os.listdir(disk) == [], str(os.listdir(disk)))
    # Another layout goes on from the middle, to the same bits, and saves in its own way.
    other = 2 if bits or "run__device" in common else 3  # the emulator has two GPUs
    folder.train(name, other, **common, **bits, zero__stage=3, run__resume=f"{folder.run(name)}/checkpoints/step-{STEPS // 2:08d}", checkpoint__files=2)
    check(f"{what}: {other} ranks go on from it", runs.same(what, folder.hashes(name), reference[f"step-{STEPS:08d}"]))


def check_failing_disk(folder, library, common, reference, disk):
    """The node's disk fails at some call, or is full from then on: the save goes directly to the run's folder."""
    for number, (error, at) in enumerate((("EIO", 3), ("ENOSPC", 9), ("EROFS", 1))):
        name = f"failing{number}"
        command = folder.command(name, 2, **common, zero__stage=2, checkpoint__staging=disk)
        faults = {"LD_PRELOAD": library, "FAULT_POINTS": disk, "FAULT_AT": str(at), "FAULT_ERROR": error, "FAULT_RANK": f"{runs.RANK}=1",
                  "FAULT_COUNT": ""}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS, env={**os.environ, **faults})
        output = done.stdout + done.stderr
        if at == 1:
            check("a node's disk that takes nothing is refused at the start", done.returncode == 7 and "checkpoint.staging" in output, output)
            continue
        check(f"{error} on the node's disk: the run goes on", done.returncode == 0 and "goes directly to" in output, output)
        ours = saved(folder, name)
        check(f"{error} on the node's disk: no checkpoint is missing or has other bits", ours == reference)


def check_weights(folder, common, disk):
    """Weights alone (checkpoint.weights_every): those of the checkpoints of the same steps, kept whatever goes, and taken by what takes checkpoints."""
    common = {**common, "run__steps": 6}
    folder.train("all", 1, **common)
    checkpoints = saved(folder, "all")
    weights = {step: {key: value for key, value in state.items() if key[0] == "master"} for step, state in checkpoints.items() if int(step[5:]) % 2 == 0}
    few = {**common, "checkpoint__every": 3, "checkpoint__keep": 1, "checkpoint__weights_every": 2}
    for number, (ranks, keys) in enumerate(((1, {}), (2, {"zero__stage": 3, "checkpoint__async": True, "checkpoint__files": 1}),
                                            (3, {"zero__stage": 1, "checkpoint__staging": disk}),
                                            (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host", "checkpoint__async": True, "checkpoint__every": 2}))):
        name, what = f"weights{number}", f"weights alone, {ranks} ranks, {keys}"
        folder.train(name, ranks, **{**few, **keys})
        root = folder.run(name) + "/weights"
        ours = {step: runs.state_digests(f"{root}/{step}") for step in sorted(os.listdir(root)) if step.startswith("step-")}
        check(f"{what}: those of the checkpoints", ours == weights)
        check(f"{what}: the run's checkpoints are its own", sorted(os.listdir(folder.run(name) + "/checkpoints")) == ["latest", "line.json", "step-00000006"]
              and folder.hashes(name) == checkpoints["step-00000006"], str(os.listdir(folder.run(name) + "/checkpoints")))
        check(f"{what}: metrics.jsonl", [row["saved_weights"] for row in folder.metrics(name) if "saved_weights" in row] == [2, 4, 6])
        verified = runs.tessera("verify", folder.run(name))
        check(f"{what}: tessera verify sees them", verified.returncode == 0 and "weights/step-00000002" in verified.stdout, verified.stdout + verified.stderr)
    # A kill has left out those of the last step: no step comes that could copy them.
    root = folder.run("weights1") + "/weights"
    shutil.rmtree(root + "/step-00000006")
    os.remove(root + "/latest")
    folder.train("weights1", 2, **few, zero__stage=3, checkpoint__async=True, checkpoint__files=1)
    check("weights alone: a start catches up on them", runs.state_digests(root + "/latest") == weights["step-00000006"])
    exports = []
    for source in (folder.run("weights1") + "/weights/latest", folder.latest("all")):
        exports.append(os.path.join(folder.path, f"export{len(exports)}"))
        subprocess.run([runs.TESSERA, "consolidate", source, exports[-1]], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    with open(exports[0] + "/model.safetensors", "rb") as one, open(exports[1] + "/model.safetensors", "rb") as other:
        check("weights alone: the export of a checkpoint", one.read() == other.read())
    done = folder.train("after", 2, **{**common, "run__steps": 2}, run__resume=folder.run("weights0") + "/weights/step-00000004")
    check("weights alone: a run begins with them", "holds only weights" in done.stdout + done.stderr, done.stdout + done.stderr)
    # A kill between the checkpoint of a step and its weights: the next start saves them.
    subprocess.run(["rm", "-r", folder.run("weights0") + "/weights/step-00000006"], check=True)
    folder.train("weights0", 2, **{**few, "run__steps": 7})
    check("weights alone: the next start catches up", runs.state_digests(folder.run("weights0") + "/weights/step-00000006") == weights["step-00000006"])


FROZEN = '["embedding.*", "layers.0.*"]'
CONSTANT_WAYS = {
    "host": [(2, {"zero__stage": 3}, {}), (3, {"zero__stage": 1}, {"files": 2, "async": True}), (2, {"mesh__pp": 2}, {"staging": True}), (1, {}, {"files": "node"}),
             (2, {"zero__stage": 3, "zero__offload_optimizer__device": "nvme", "zero__offload_param__device": "nvme"}, {"files": 1, "staging": True}),
             (2, {"zero__stage": 2}, {"weights_every": 1, "async": True})],
    "cuda": [(2, {"zero__stage": 3}, {"async": True})],
}


def constant_files(folder, name, ranks, below="checkpoints"):
    """Of each checkpoint of a run, the files that have what no step changes: their inodes."""
    found = {}
    for step in sorted(os.listdir(f"{folder.run(name)}/{below}")):
        if step.startswith("step-"):
            place = f"{folder.run(name)}/{below}/{step}"
            shards = sorted(file for file in os.listdir(place) if file.startswith("shard-"))
            found[step] = [os.stat(f"{place}/{file}").st_ino for file in shards[len(shards) // 2 :]]
    return found


def verify(folder, name):
    done = runs.tessera("verify", folder.run(name))
    return done.returncode == 0, done.stdout + done.stderr


def check_constants(folder, case, number, common, disk, references):
    """What a run leaves as it is (model.freeze) is written by the first save of a start; later ones have it by another name. Each is whole by itself."""
    ranks, layout, way = case
    what, name = f"frozen, {ranks} ranks, {layout}, {way}", f"frozen{number}"
    common = {**common, "model__freeze": FROZEN, "precision__compute": "bf16"}
    if not references:
        folder.train("frozen-reference", 1, **common)
        references.update(saved(folder, "frozen-reference"))
    keys = {**common, **layout, **save_keys(way, disk)}
    done = folder.train(name, ranks, **keys)
    for below in ("checkpoints", "weights") if "weights_every" in way else ("checkpoints",):
        inodes = constant_files(folder, name, ranks, below)
        check(f"{what}: written once in {below}", len(inodes) == STEPS and len({str(files) for files in inodes.values()}) == 1 and all(inodes.values()), str(inodes))
    told = re.findall(r"; \S+ \S+ that no step changes are linked", done.stdout + done.stderr)
    check(f"{what}: the log says so", len(told) == (STEPS - 1) * (2 if "weights_every" in way else 1), done.stdout + done.stderr)
    check(f"{what}: every checkpoint has the bits of one rank's", all(runs.same(what, saved(folder, name)[step], references[step]) for step in references))
    root = folder.run(name) + "/checkpoints"
    for step in range(1, STEPS):
        shutil.rmtree(f"{root}/step-{step:08d}")
    check(f"{what}: the last one needs no other", *verify(folder, name))
    folder.train(name, ranks, **{**keys, "run__steps": STEPS + 2})
    later = constant_files(folder, name, ranks)
    check(f"{what}: another start writes it anew", list(later) == [f"step-{step:08d}" for step in (STEPS, STEPS + 1, STEPS + 2)]
          and later[f"step-{STEPS:08d}"] != later[f"step-{STEPS + 1:08d}"] == later[f"step-{STEPS + 2:08d}"], str(later))
    folder.train(name, 1, **{**common, "run__steps": STEPS + 3})
    check(f"{what}: one rank goes on from it", *verify(folder, name))


def check_without_links(folder, library, common, references):
    """A file system that has one name a file, and a checkpoint whose constant file is damaged before the next save links it: it is written."""
    common = {**common, "model__freeze": FROZEN, "precision__compute": "bf16"}
    command = folder.command("nolinks", 2, **common, checkpoint__files=1)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS,
                          env={**os.environ, "LD_PRELOAD": library, "FAULT_POINTS": folder.run("nolinks"), "FAULT_LINKS": "EPERM"})
    inodes = constant_files(folder, "nolinks", 2)
    check("a file system without links: each save writes all", done.returncode == 0 and len({str(files) for files in inodes.values()}) == STEPS,
          f"{inodes}\n{done.stdout}{done.stderr}")
    check("a file system without links: the same bits", saved(folder, "nolinks") == references)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    options = parser.parse_args()
    with runs.Folder() as folder:
        common = dict(COMMON)
        if options.device == "cuda":
            common.update(runs.ON_GPUS)
        disk = os.path.join(folder.path, "disk")
        os.mkdir(disk)
        folder.train("reference", 1, **common)
        references = {"{}": saved(folder, "reference")}
        for number, case in enumerate(WAYS[options.device]):
            check_way(folder, number, case, common, references, disk)
        os.environ.pop("TESSERA_RANKS_PER_NODE")
        frozen = {}
        for number, case in enumerate(CONSTANT_WAYS[options.device]):
            check_constants(folder, case, number, common, disk, frozen)
        if options.device == "host":
            check_weights(folder, common, disk)
            check_without_links(folder, options.library, common, frozen)
            check_failing_disk(folder, options.library, common, references["{}"], disk)
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
