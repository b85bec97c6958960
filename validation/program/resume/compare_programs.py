#!/usr/bin/env python3
"""Two builds of tessera on the same machine: the same bits of losses and weights, the same texts, the same plans? For whoever changes how a step is
built and not what it computes.
    compare_programs.py OLD NEW [--plans same|bytes|ignore] [--only NAME] [--device host|cuda]
--plans same: the memory that `plan --json` says must be the same to the byte; bytes: totals may not grow; ignore: plans are not compared."""
import argparse
import json
import os
import subprocess
import sys

import runs

# Name, ranks, keys: every branch of the model, every stage, both types, all that cuts collectives or repeats micro-batches.
DECKS = [
    ("plain", 1, {"zero__stage": 0}),
    ("stage1", 2, {"zero__stage": 1, "zero__reduce_bucket_size": 4096, "zero__allgather_bucket_size": 4096}),
    ("stage2", 3, {"zero__stage": 2, "zero__sub_group_size": 1024}),
    ("stage3", 2, {"zero__stage": 3, "zero__param_persistence_threshold": 64}),
    ("stage3-tight", 3, {"zero__stage": 3, "zero__param_persistence_threshold": 0, "zero__max_reuse_distance": 0,
                         "zero__max_live_parameters": 30000, "run__lanes": "threads"}),
    ("tied", 2, {"model__tied": True, "zero__stage": 3}),
    ("qk-norm", 2, {"model__qk_norm": True, "zero__stage": 2}),
    ("bias", 1, {"model__qkv_bias": True, "zero__stage": 1}),
    ("qk-norm-bias-tied", 2, {"model__qk_norm": True, "model__qkv_bias": True, "model__tied": True, "zero__stage": 3}),
    ("bf16", 2, {"precision__compute": "bf16", "zero__stage": 3}),
    ("bf16-tied-accumulate", 1, {"precision__compute": "bf16", "model__tied": True, "batch__micro": 2}),
    ("one-micro-batch", 2, {"batch__global": 2, "zero__stage": 2, "kernels__loss_chunk": 5}),
]
COMMON = {"run__reproducible": True, "run__steps": 6, "run__threads": 1, "batch__global": 12, "evaluate__every": 3, "evaluate__batches": 3}


def rows(folder, name):
    with open(os.path.join(folder.run(name), "metrics.jsonl")) as lines:
        kept = ("step", "loss", "grad_norm", "val_loss")
        found = [{key: row[key] for key in kept if key in row} for row in map(json.loads, lines)]
    return [row for row in found if len(row) > 1]  # a start's row has neither


def ask(program, *arguments):
    done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=300)
    if done.returncode != 0:
        sys.exit(f"FAIL {program} {' '.join(arguments)}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def results(folder, program, side, name, ranks, keys):
    runs.TESSERA = program
    run = f"{side}-{name}"
    folder.train(run, ranks, data__validation=f'"{folder.data}"', **keys)
    overrides = folder.command(run, 1, data__validation=f'"{folder.data}"', **keys)[3:]
    plan = json.loads(ask(program, "plan", folder.deck, "--ranks", str(ranks), "--threads", "1", "--json", *overrides))
    texts = [ask(program, "generate", folder.latest(run), "--device", keys["run__device"], "--prompt", prompt, "--tokens", "12", *more)
             for prompt in ("a", "In the beginning") for more in (["--temperature", "0"], ["--temperature", "0.8", "--seed", "3"])]
    return {"metrics": rows(folder, run), "state": folder.hashes(run), "plan": plan, "texts": texts}


def same_plan(name, old, new, mode):
    if mode == "ignore":
        return True
    if mode == "bytes":
        good = new["bytes_per_rank"] <= old["bytes_per_rank"]
        print(f"{'ok  ' if good else 'FAIL'} {name}: {old['bytes_per_rank']} bytes a rank before, {new['bytes_per_rank']} now")
        return good
    for plan in (old, new):
        for tier in plan["tiers"].values():
            tier.pop("peak", None)  # follows from the tasks, and older programs do not say it
    unlike = [key for key in ("parameters", "units", "micro_batches_per_rank", "flops_per_token", "bytes_per_rank", "tiers") if old[key] != new[key]]
    for key in unlike:
        print(f"FAIL {name}: plan: {key}: {new.get(key)} instead of {old[key]}")
    return not unlike


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--plans", choices=["same", "bytes", "ignore"], default="same")
    parser.add_argument("--only", help="the deck of this name alone")
    parser.add_argument("--device", choices=["host", "cuda"], default="host")
    options = parser.parse_args()
    good = True
    with runs.Folder() as folder:
        for name, ranks, keys in DECKS:
            if options.only not in (None, name):
                continue
            keys = {**COMMON, "run__device": options.device, "model__vocab": 257, **keys}
            if options.device == "cuda":
                keys.update(topology__share_gpu=True, kernels__gemm_search=False)
            old = results(folder, os.path.abspath(options.old), "old", name, ranks, keys)
            new = results(folder, os.path.abspath(options.new), "new", name, ranks, keys)
            fine = all([runs.same(f"{name}: {what}", dict(enumerate(new[what])) if isinstance(new[what], list) else new[what],
                                  dict(enumerate(old[what])) if isinstance(old[what], list) else old[what]) for what in ("metrics", "state", "texts")])
            fine = same_plan(name, old["plan"], new["plan"], options.plans) and fine
            print(f"{'ok  ' if fine else 'FAIL'} {name}", flush=True)
            good &= fine
    print("same" if good else "different")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
