#!/usr/bin/env python3
"""Runs in fp16: steps whose gradients overflow are skipped and the scale of the loss falls and rises, with the same bits on any layout and across
resumes; a scale that cannot fall ends the run with what to do.
    fp16.py [--device host|cuda]"""
import argparse
import json
import sys

import runs
from drawn import DRAW, FULL

check = runs.Checks()
# A scale far above what the gradients of so small a model bear, and a window of few steps: it falls, rises and falls again.
SCALE = {"precision__compute": "fp16", "precision__loss_scale__initial_power": 26, "precision__loss_scale__window": 2, "precision__loss_scale__hysteresis": 1}
LAYOUTS = {
    "host": [(2, {"zero__stage": 0}), (3, {"zero__stage": 1, "zero__offload_optimizer__device": "host"}), (2, {"zero__stage": 2, "zero__offload_optimizer__device": "nvme"}),
             (4, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"mesh__pp": 2, "zero__stage": 1}), (4, {"mesh__pp": 2, "zero__stage": 2}),
             (4, {"mesh__replicate": 2, "zero__stage": 2}), (1, {"activation__recompute": "full", "run__lanes": "threads"}),
             (2, {"zero__stage": 2, "checkpoint__async": True})],
    "cuda": [(1, {"kernels__cuda_graph": "on"}), (2, {"zero__stage": 2, "kernels__cuda_graph": "off"}), (2, {"zero__stage": 3, "zero__offload_optimizer__device": "host"})],
}
NEAR = {"host": [(2, {"mesh__tp": 2}), (2, {"mesh__cp": 2})], "cuda": []}


def scales(folder, name):
    """Loss scale of each step, and whether it was skipped."""
    return {row["step"]: (row["loss_scale"], row["skipped"]) for row in folder.metrics(name) if "loss_scale" in row}


def values(folder, name):
    return json.loads(runs.tessera("inspect", folder.latest(name), "--json").stdout)["run"]


def name_of(ranks, keys):
    return "-".join([f"ranks{ranks}"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    with runs.Folder() as folder:
        steps = 16 if device == "host" else 14
        common = {**SCALE, "run__steps": steps, "batch__global": 8, "checkpoint__every": steps // 2, "checkpoint__keep": 0, "run__log_every": 1}
        if device == "cuda":
            common.update(runs.ON_GPUS)
        exact = {**common, "run__reproducible": True}
        done = folder.train("alone", 1, **exact)
        losses, hashes, path, kept = folder.losses("alone"), folder.hashes("alone"), scales(folder, "alone"), values(folder, "alone")
        skipped = [step for step, (_, gone) in path.items() if gone]
        check("steps are skipped, and others are not", 0 < len(skipped) < steps and len(path) == steps, str(path))
        check("the scale falls and rises", any(path[step + 1][0] > path[step][0] for step in range(1, steps)) and any(path[step + 1][0] < path[step][0] for step in range(1, steps)), str(path))
        check("a checkpoint counts what was applied", kept["applied_updates"] == steps - len(skipped) and kept["sample_cursor"] == steps * exact["batch__global"]
              and kept["loss_scale"] > 0, str(kept))
        check("the log says each skip and each rise", (done.stderr + done.stdout).count("the update is skipped") == len(skipped) and "the loss scale rises" in done.stderr + done.stdout, done.stderr)
        first = [row for row in folder.metrics("alone") if row.get("skipped") == 0][0]
        check("the learning rate counts updates", first["step"] > 1 and first["lr"] == 3e-3 / 2, str(first))
        layouts = LAYOUTS[device]
        for number, (ranks, keys) in enumerate(layouts):
            if device == "host" and not FULL and (number + DRAW) % 3:
                continue
            name = name_of(ranks, keys)
            folder.train(name, ranks, **{**exact, **keys})
            check(f"{name}: the bits of one rank", folder.losses(name) == losses and folder.hashes(name) == hashes and scales(folder, name) == path
                  and values(folder, name) == kept, f"{scales(folder, name)} instead of {path}")
        # From the middle on, where the scale is about to move, at other layouts.
        ranks, keys = layouts[(DRAW + 1) % len(layouts)]
        after = steps // 2
        folder.train("resumed", ranks, run__resume=folder.run("alone") + f"/checkpoints/step-{after:08d}", **{**exact, **keys})
        later = {step: loss for step, loss in losses.items() if step > after}
        check(f"resumed on {name_of(ranks, keys)}: the same bits", folder.losses("resumed") == later and folder.hashes("resumed") == hashes and values(folder, "resumed") == kept,
              str(scales(folder, "resumed")))
        folder.train("fast", 1, **common)
        for ranks, keys in NEAR[device]:
            name = "fast-" + name_of(ranks, keys)
            folder.train(name, ranks, **{**common, **keys})
            pairs = [(folder.losses(name)[step][0], loss[0]) for step, loss in folder.losses("fast").items()]
            check(f"{name}: near one rank", all(abs(a / b - 1) < 2e-3 for a, b in pairs), str(pairs))
        if device == "host":
            # A scale that cannot fall, and a fixed one.
            lowest = {**common, "precision__loss_scale__minimum": 2.0**26}
            done = folder.train("lowest", 1, expect=8, **lowest)
            check("at the lowest scale the run ends with what to do", "precision.loss_scale.minimum" in done.stderr and 'precision.compute = "bf16"' in done.stderr, done.stderr)
            done = folder.train("fixed", 2, expect=8, precision__compute="fp16", precision__loss_scale__fixed=2.0**26, batch__global=8, run__steps=4)
            check("and so does a fixed one, after hysteresis overflows in a row", "step 2:" in done.stderr and "precision.loss_scale.fixed" in done.stderr, done.stderr)
            folder.train("bf16", 1, run__resume=folder.latest("alone"), run__steps=steps + 2, batch__global=8, precision__compute="bf16")
            check("its weights go on in bf16", len(folder.losses("bf16")) == 2)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
