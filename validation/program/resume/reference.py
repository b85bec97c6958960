#!/usr/bin/env python3
"""A frozen reference beside the model (reference.model = "start") over layouts. Training has the bits that it has without it. The loss of
the reference is that of a run whose weights do not move, to the bit and across a resume at another layout. Saves hold it once.
No Python packages."""
import glob
import os
import sys

import runs
from drawn import third

check = runs.Checks()
STEPS = 4
KEYS = {"run__steps": STEPS, "run__reproducible": True, "batch__global": 8, "batch__micro": 2, "checkpoint__every": 2,
        "checkpoint__keep": 0, "precision__compute": "bf16", "zero__param_persistence_threshold": 0}
REFERENCE = {"reference__model": "start"}
STILL = {"optimizer__groups": '[{ tensors = ["*"], learning_rate = 0.0, weight_decay = 0.0 }]'}
OFFLOADED = {"zero__stage": 3, "zero__offload_param__device": "host", "zero__offload_optimizer__device": "host"}
# What has no part in the arithmetic, of one plain layout each.
DENSE = [(2, {"zero__stage": 1}), (3, {"zero__stage": 2}), (2, {"zero__stage": 3}), (2, OFFLOADED),
         (3, {**OFFLOADED, "zero__offload_param__device": "nvme"}), (2, {"mesh__pp": 2}), (4, {"mesh__pp": 2, "zero__stage": 3}),
         (2, {"mesh__pp": 2, "pipeline__schedule": "zero_bubble"})]
GROUPS = {
    "dense": ({}, DENSE),
    "interleaved": ({"model__layers": 4}, [(2, {"mesh__pp": 2, "pipeline__schedule": "interleaved"})]),
    "tensor": ({"mesh__tp": 2}, [(4, {"zero__stage": 3}), (4, {"mesh__pp": 2})]),
    "context": ({"mesh__cp": 2}, [(4, {"zero__stage": 2}), (4, {"mesh__pp": 2})]),
    "experts": ({"mesh__ep": 2, "model__experts": 4, "model__router_balance": "bias"}, [(4, {"zero__stage": 3}), (2, {"zero__stage": 1})]),
    "tied": ({"model__tied": True}, [(2, {"mesh__pp": 2}), (2, OFFLOADED)]),
    "lora": ({"lora__rank": 2, "lora__dropout": 0.3}, [(2, {"zero__stage": 3}), (2, {"mesh__pp": 2})]),
    "whole": ({"lora__rank": 2, "lora__modules_to_save": '["lm_head"]'}, [(2, {"zero__stage": 3}), (2, {"mesh__pp": 2})]),
}


def of_reference(folder, name):
    return {row["step"]: row["reference_loss"] for row in folder.metrics(name) if "reference_loss" in row}


def losses(folder, name):
    return {row["step"]: row["loss"] for row in folder.metrics(name) if "loss" in row}


def weights(folder, name):
    return {key: value for key, value in folder.hashes(name).items() if key[0] != "reference"}


def saved_once(folder, name):
    """Shards that hold the reference are one file in all checkpoints of a start."""
    links = {}
    for path in glob.glob(os.path.join(folder.run(name), "checkpoints", "step-*", "*")):
        links.setdefault(os.path.basename(path), set()).add(os.stat(path).st_ino)
    return any(len(files) == 1 for shard, files in links.items() if shard.startswith("shard"))


def play(folder, group, keys, layouts):
    """A plain layout without the reference, one whose weights do not move, and layouts with it, each of which resumes the one before."""
    ranks = keys.get("mesh__tp", 1) * keys.get("mesh__cp", 1) * keys.get("mesh__ep", 1)
    plain, still = f"{group}-plain", f"{group}-still"
    folder.train(plain, ranks, **KEYS, **keys)
    folder.train(still, ranks, **{**KEYS, **keys, **STILL}, **({"model__router_bias_rate": 0} if "model__experts" in keys else {}))
    wanted = losses(folder, still)
    check(f"{group}: the model moves", losses(folder, plain)[STEPS] != wanted[STEPS])
    start = None
    for number, (count, layout) in enumerate([(ranks, {}), *layouts]):
        name = f"{group}-{number}"
        done = folder.train(name, count, **{**KEYS, **keys, **layout, **REFERENCE})
        what = f"{group} on {count} ranks, {layout}"
        same = folder.losses(name) == folder.losses(plain) and weights(folder, name) == weights(folder, plain)
        check(f"{what}: bits of the training", same, done.stderr)
        there = of_reference(folder, name)
        check(f"{what}: the reference's loss", there == wanted, f"{there} instead of {wanted}")
        if start:
            resumed = f"{name}-resumed"
            done = folder.train(resumed, count, run__resume=start, **{**KEYS, **keys, **layout, **REFERENCE})
            there = of_reference(folder, resumed)
            same = there == {step: wanted[step] for step in (3, 4)}
            check(f"{what}: the reference's loss after a resume", same, f"{there} instead of {wanted}")
            check(f"{what}: bits after a resume", folder.hashes(resumed) == folder.hashes(name), done.stderr)
        start = os.path.join(folder.run(name), "checkpoints", "step-00000002")
    return start


def killed(folder):
    """A run that was killed goes on to what one has that nobody disturbed."""
    keys = {**KEYS, **REFERENCE, "zero__stage": 3, **runs.ENDLESS, "checkpoint__every": 5}
    running = folder.start("killed", 2, **keys)
    running.wait_for_step(7)
    running.kill()
    last = {**keys, "run__steps": 30}
    folder.train("killed", 2, **last)
    folder.train("undisturbed", 2, **last)
    check("a killed run: bits of the state", folder.hashes("killed") == folder.hashes("undisturbed"))
    check("a killed run: the reference's loss", of_reference(folder, "killed") == of_reference(folder, "undisturbed"))


def begins_and_ends(folder):
    """A run may drop its reference when it resumes, and may add one: the weights that it resumes from. Saves of weights leave it out."""
    folder.train("with", 2, **KEYS, **REFERENCE, zero__stage=1, checkpoint__weights_every=2)
    check("saves link what no step changes", saved_once(folder, "with"))
    first = os.path.join(folder.run("with"), "checkpoints", "step-00000002")
    inspected = runs.tessera("inspect", os.path.join(folder.run("with"), "weights", "step-00000002"))
    alone = inspected.returncode == 0 and "reference" not in inspected.stdout
    check("saves of weights leave the reference out", alone, inspected.stdout + inspected.stderr)
    folder.train("without", 1, **KEYS, run__resume=first)
    later = {step: loss for step, loss in folder.losses("with").items() if step > 2}
    check("a run goes on without its reference", folder.losses("without") == later)
    half = os.path.join(folder.run("without"), "checkpoints", "step-00000004")
    more = {**KEYS, "run__steps": 6}
    folder.train("again", 2, **more, **REFERENCE, zero__stage=3, run__resume=half)
    folder.train("still", 1, **{**more, **STILL}, run__resume=half)
    check("and begins to have one, of the weights that it goes on from", of_reference(folder, "again") == losses(folder, "still"))
    done = runs.tessera("evaluate", first, "--data", folder.data)
    check("a checkpoint with a reference is evaluated", done.returncode == 0, done.stderr)
    exported = os.path.join(folder.path, "exported")
    done = runs.tessera("consolidate", first, exported)
    check("and exported", done.returncode == 0, done.stderr)
    with open(os.path.join(exported, "model.safetensors"), "rb") as file:
        check("without the reference", b"reference" not in file.read(20000))


def main():
    with runs.Folder() as folder:
        for group, (keys, layouts) in GROUPS.items():
            play(folder, group, keys, third(layouts) if group == "dense" else layouts)
        begins_and_ends(folder)
        killed(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
