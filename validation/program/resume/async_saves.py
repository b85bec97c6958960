#!/usr/bin/env python3
"""Saves beside the steps (checkpoint.async): each checkpoint has the bits of the one that a run writes which waits for its saves, on any layout; the plan
counts the copy that they are written from; the log and metrics.jsonl say how long steps waited.
    async_saves.py [--device host|cuda]"""
import argparse
import os
import re
import sys

import runs

check = runs.Checks()
STEPS = 6
COMMON = {"batch__global": 12, "run__steps": STEPS, "checkpoint__every": 1, "checkpoint__keep": 0, "run__reproducible": True}
LAYOUTS = {
    "host": [(1, {}), (1, {"run__lanes": "inline"}), (2, {"zero__stage": 1}), (2, {"zero__stage": 2, "run__lanes": "threads"}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"zero__stage": 0}),
             (2, {"mesh__pp": 2, "zero__stage": 2, "run__lanes": "threads"}), (4, {"mesh__replicate": 2, "zero__stage": 2}),
             (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}),
             (2, {"zero__stage": 3, "zero__offload_optimizer__device": "host", "zero__offload_param__device": "host", "precision__compute": "bf16"}),
             (2, {"zero__stage": 3, "precision__compute": "bf16", "model__freeze": '["layers.0.*"]'})],
    "cuda": [(1, {"precision__compute": "bf16"}), (2, {"zero__stage": 3, "zero__param_persistence_threshold": 0}),
             (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}),
             (2, {"zero__stage": 2, "precision__compute": "bf16", "model__freeze": '["layers.0.*"]'})],
}


def saved(folder, name):
    """Digests of the state of every checkpoint of a run."""
    root = folder.run(name) + "/checkpoints"
    return {step: runs.state_digests(f"{root}/{step}") for step in sorted(os.listdir(root)) if step.startswith("step-")}


def snapshot_bytes(plan):
    return sum(tier["categories"].get("snapshot", 0) for tier in plan["tiers"].values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    with runs.Folder() as folder:
        common = dict(COMMON)
        if device == "cuda":
            common.update(runs.ON_GPUS)
        references = {}
        for number, (ranks, keys) in enumerate(LAYOUTS[device]):
            what = f"{ranks} ranks, {keys}"
            model = {"precision__compute": keys.get("precision__compute", "fp32"), "model__freeze": keys.get("model__freeze", "[]")}
            of = tuple(model.values())
            if of not in references:
                reference = f"reference-{len(references)}"
                folder.train(reference, 1, **common, **model)
                references[of] = saved(folder, reference)
            name = f"run{number}"
            layout = {**common, **model, **keys, "checkpoint__async": True}
            done = folder.train(name, ranks, **layout)
            ours = saved(folder, name)
            check(f"{what}: every checkpoint has the bits of one that was waited for",
                  list(ours) == list(references[of]) and all(runs.same(what, ours[step], references[of][step]) for step in ours))
            lines = re.findall(r"saved \S+ \(\S+ \S+ in \S+ s while steps continued, after they had waited (\S+) s\)",
                               done.stdout + done.stderr)
            rows = [row for row in folder.metrics(name) if "saved" in row]
            check(f"{what}: each save is told of", len(lines) == STEPS == len(rows) and [row["saved"] for row in rows] == list(range(1, STEPS + 1))
                  and all(0 <= row["save_stall_seconds"] <= row["save_seconds"] + 1e-9 for row in rows), done.stdout + done.stderr)
            # Each element is saved once: 12 bytes of it, over all ranks, and what units are padded by. What is frozen is not copied.
            plain = folder.plan(ranks, **{**layout, "checkpoint__async": False})
            beside = [folder.plan(ranks, "--rank", str(rank), **layout) for rank in range(ranks)]
            frozen = "layers.0." if "model__freeze" in keys else " "
            state = sum(len(data) for (_, tensor), (_, data) in runs.read_state(folder.latest(name)).items() if not tensor.startswith(frozen))
            replicas = keys.get("mesh__replicate", 1)
            total = sum(map(snapshot_bytes, beside))
            check(f"{what}: the plan counts the copy", snapshot_bytes(plain) == 0 and state <= total <= 2 * replicas * state + (1 << 16), f"{total} for {state}")
        # One that goes on from a checkpoint that was saved beside the steps, on another layout, and one that is asked to stop.
        folder.train("stopped", 1, **{**common, "run__steps": 3, "checkpoint__async": True, "learning_rate__schedule": "constant"})
        folder.train("stopped", 2, **{**common, "zero__stage": 2, "learning_rate__schedule": "constant"})
        folder.train("whole", 1, **{**common, "learning_rate__schedule": "constant"})
        check("a run goes on from such a checkpoint", runs.same("resumed", folder.hashes("stopped"), folder.hashes("whole")))
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
