#!/usr/bin/env python3
"""run.breakdown_every and run.profile over the layouts: the parts of a step are together the step, those of the lanes are what a timeline of the same step says, their bytes are
the schedule's, and the arenas in the row are those of the plan; the kernels of a profile have the FLOPs of the timeline. Of the layouts a part is run, by TESSERA_TEST_DRAW; all with TESSERA_TEST_FULL=1.
Usage: breakdown.py [--device host|cuda]"""
import argparse
import json
import math
import os
import re
import sys

import runs
from drawn import DRAW, FULL

STEPS, TRACED = 3, 3
KEYS = {"run__steps": STEPS, "batch__global": 8, "run__breakdown_every": 1, "run__trace": TRACED, "run__profile": True}
DISK = {"zero__offload_optimizer__device": "nvme", "zero__offload_optimizer__buffer_count": 5}
LAYOUTS = [(1, {}), (2, {"zero__stage": 0}), (2, {"zero__stage": 1}), (2, {"zero__stage": 2, "run__lanes": "inline"}), (2, {"zero__stage": 3}),
           (2, {"mesh__pp": 2}), (2, {"mesh__tp": 2}), (2, {"mesh__cp": 2}), (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}),
           (2, {"zero__stage": 3, **DISK}), (4, {"zero__stage": 3, "mesh__pp": 2}), (2, {"model__experts": 2, "model__expert_ff_width": 16, "mesh__ep": 2}),
           (4, {"zero__stage": 3, "zero__hpz_partition_size": 2})]
DEVICES = {"host": LAYOUTS, "cuda": [LAYOUTS[4], LAYOUTS[8], LAYOUTS[5]]}
TIMES = 1e-6  # seconds: a timeline is written in microseconds


def check_profile(check, what, folder, name, on_host, said, flops, seconds):
    path = os.path.join(folder.run(name), "profile.json")
    if not on_host:
        check(f"{what}: no profile of a GPU, and a word of it", not os.path.exists(path) and "note: run.profile has no effect" in said, said)
        return
    with open(path) as file:
        profile = json.load(file)
    kernels = profile["kernels"]
    counted = math.fsum(kernel["flops"] for kernel in kernels)
    check(f"{what}: kernels have the timeline's FLOPs", abs(counted - flops) <= 1e-9 * flops > 0, f"{counted} {flops}")
    check(f"{what}: and no more than the steps' time", profile["steps"] == STEPS - 1 and
          0 < math.fsum(kernel["seconds"] for kernel in kernels) <= profile["seconds"] <= 1.001 * seconds / (STEPS - 1), str(profile))
    check(f"{what}: rates were measured, and a table is printed", min(profile["product_flops_per_second"], profile["stream_bytes_per_second"]) > 0 and
          all(kernel["calls"] > 0 for kernel in kernels) and said.count("kernels of rank 0 compared with their bounds") == 1, said)


def check_layout(check, folder, number, ranks, keys):
    name, what = f"run{number}", f"{ranks} ranks, {keys}"
    if "zero__offload_optimizer__device" in keys and keys["zero__offload_optimizer__device"] == "nvme":
        keys = {**keys, "zero__offload_optimizer__nvme_path": os.path.join(folder.path, "disk")}
        os.makedirs(keys["zero__offload_optimizer__nvme_path"], exist_ok=True)
    said = folder.train(name, ranks, **{**KEYS, **keys}).stderr
    rows = [row for row in folder.metrics(name) if "loss" in row]
    for row in rows:
        off = abs(math.fsum(row["seconds_of"].values()) / row["seconds"] - 1)
        check(f"{what}: step {row['step']} is its parts, off by {100 * off:.3f} %", off < 0.02, str(row))
    row = rows[TRACED - 1]
    with open(os.path.join(folder.run(name), "trace", f"step-{TRACED:08d}", "rank-0000.json")) as file:
        trace = json.load(file)
    other, events = trace["otherData"], [e for e in trace["traceEvents"] if e["ph"] == "X"]
    beside = ("waits", "data", "host")
    busy = math.fsum(seconds for part, seconds in row["seconds_of"].items() if part not in beside)
    check(f"{what}: parts are the time in which a lane was at work", abs(busy - other["busy_seconds"]) < TIMES * len(events), f"{busy} {other}")
    check(f"{what}: waits are the time in which none was", abs(row["seconds_of"]["waits"] - other["idle_seconds"]) < TIMES * len(events), str(row))
    computes = ("forward", "backward", "head", "optimizer", "other")
    check(f"{what}: the compute lane's time is compute's", math.fsum(row["seconds_of"].get(part, 0) for part in computes) >=
          other["lanes"]["compute"]["busy_seconds"] - TIMES * len(events), str(row))
    planned = folder.plan(ranks, **{**KEYS, **keys})
    moved = math.fsum(row.get("bytes_of", {}).values())
    check(f"{what}: {moved:.0f} bytes are the timeline's and the plan's", moved == math.fsum(e["args"]["bytes_moved"] for e in events) == planned["step"]["bytes_moved"],
          f"{row.get('bytes_of')} {planned['step']}")
    if "run__device" not in keys:  # a plan looks for no GPU
        arenas = {tier: row["memory"].get(f"arena_{tier}", 0) for tier in ("host", "pinned", "shared", "nvme", "device")}
        check(f"{what}: arenas are the plan's", sum(arenas.values()) == sum(tier["bytes"] for tier in planned["tiers"].values()), f"{arenas} {planned['tiers'].keys()}")
    check(f"{what}: the process has more than that, and had more at most",
          row["memory"]["process_most"] >= row["memory"]["process"] > 0, str(row["memory"]))
    check_profile(check, what, folder, name, "run__device" not in keys, said, math.fsum(e["args"]["flops"] for e in events), math.fsum(row["seconds"] for row in rows[1:]))
    check(f"{what}: a table a step but the first, and one of memory", len(re.findall(r"^time of step \d+ on rank 0", said, re.M)) == STEPS - 1 and said.count("memory of rank 0") == 1, said)


def check_rare_tables(check, folder):
    """A long run's log stays one of steps: tables after 1, 2, 4 and 8 measurements and at the end, each of the steps since the last; all are in metrics.jsonl."""
    said = folder.train("rare", 1, run__steps=13, run__breakdown_every=1, batch__global=4).stderr
    of = [(int(first), int(last or first)) for first, last in re.findall(r"time of steps? (\d+)(?: to (\d+))? on rank 0", said)]
    check("tables are ever rarer, and leave no step out", of == [(2, 2), (3, 3), (4, 5), (6, 9), (10, 13)], f"{of}\n{said}")
    check("each says where the next one is", re.findall(r"the next table comes after step (\d+)", said) == ["3", "5", "9", "13"], said)
    check("metrics.jsonl has all of them", sum("seconds_of" in row for row in folder.metrics("rare")) == 13)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    check = runs.Checks()
    with runs.Folder() as folder:
        if device == "cuda" and not runs.has_gpu(folder):
            print("skipped: there is no GPU")
            return 77
        if device == "host":
            check_rare_tables(check, folder)
        layouts = list(enumerate(DEVICES[device]))
        for number, (ranks, keys) in [(n, layout) for n, layout in layouts if FULL or device == "cuda" or (n + DRAW) % 3 == 0]:
            more = {"run__device": "cuda", "topology__share_gpu": True, "batch__sequence_length": 8} if device == "cuda" else {}
            check_layout(check, folder, number, ranks, {**keys, **more})
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
