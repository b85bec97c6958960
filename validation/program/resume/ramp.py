#!/usr/bin/env python3
"""A run whose batches grow (batch.ramp): the same bits on any layout and across stops and kills before, at and after a border; each phase's steps are those of
a run that has its batch alone; every token is seen exactly once a pass; and what is no such ramp is refused.
    ramp.py [--device host|cuda]"""
import argparse
import os
import re
import struct
import sys

import runs
from drawn import third

check = runs.Checks()
# Four phases: small batches of short sequences, more of them, longer ones, and what the deck says. A step takes 2, 4, 6 and 6 samples.
RAMP = "[{ until_step = 2, global = 8, sequence_length = 3 }, { until_step = 3, global = 8, sequence_length = 6 }, { until_step = 5, sequence_length = 4, global = 18 }]"
SAMPLES = (2, 2, 4, 6, 6, 6, 6)  # of each step
COMMON = {"batch__global": 6, "batch__micro": 2, "batch__ramp": RAMP, "run__steps": 7, "run__reproducible": True, "checkpoint__every": 1, "checkpoint__keep": 0,
          "data__validation": None, "evaluate__every": 1, "evaluate__batches": 3}
LAYOUTS = {
    "host": [(1, {"zero__stage": 1}), (2, {"zero__stage": 0}), (2, {"zero__stage": 2, "run__lanes": "threads", "zero__reduce_bucket_size": 4096}),
             (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (3, {"zero__stage": 1, "activation__recompute": "full"}),
             (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), (2, {"zero__stage": 3, "checkpoint__async": True}),
             (2, {"zero__stage": 3, "zero__offload_optimizer__device": "host", "zero__offload_param__device": "host"}),
             (2, {"mesh__pp": 2, "run__lanes": "threads"}), (4, {"mesh__replicate": 2, "zero__stage": 2})],
    "cuda": [(1, {"zero__stage": 1}), (2, {"zero__stage": 0}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}),
             (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"})],
}


def key(folder, name, of):
    return {row["step"]: row[of] for row in folder.metrics(name) if of in row}


def later(values, step):
    return {at: value for at, value in values.items() if at > step}


def check_same(folder, name, after=0, of="reference"):
    losses, evaluations = folder.losses(name), key(folder, name, "val_loss")
    check(f"{name}: the bits of one rank", losses == later(folder.losses(of), after) and evaluations == later(key(folder, of, "val_loss"), after)
          and folder.hashes(name) == folder.hashes(of), f"{losses}, {evaluations} instead of {folder.losses(of)}, {key(folder, of, 'val_loss')}")


def check_phases(folder, common):
    """Each phase alone: a run of its batch that goes on from the checkpoint at its border. Phases of whole samples have the very sequences."""
    ramp = "[{ until_step = 2, global = 2 }, { until_step = 4, global = 4 }]"
    whole = {**common, "batch__ramp": ramp, "learning_rate__schedule": "constant"}
    folder.train("whole", 1, **whole)
    steps = [(0, 2, 2), (2, 4, 4), (4, 7, 6)]
    losses = {}
    for number, (begin, end, samples) in enumerate(steps):
        keys = {**whole, "batch__ramp": "[]", "batch__global": samples, "run__steps": end}
        if number:
            keys["run__resume"] = folder.run(f"alone-{number - 1}") + f"/checkpoints/step-{begin:08d}"
        folder.train(f"alone-{number}", 1, **keys)
        losses.update(folder.losses(f"alone-{number}"))
    check("phases of a run are the runs of their batches, one after another", losses == folder.losses("whole") and folder.hashes("alone-2") == folder.hashes("whole"),
          f"{losses} instead of {folder.losses('whole')}")


def check_tokens(folder, common):
    """One step over all samples of a file, cut into short sequences, is the step of a run of sequences as short over the same file: none is left out or
    seen twice, for sums over the micro-batches of a reproducible run do not depend on their order."""
    length, samples = 12, 14
    path = os.path.join(folder.path, "few.bin")
    with open(folder.data, "rb") as data, open(path, "wb") as out:
        out.write(data.read(2 * (length * samples + 1)))
    few = {**common, "batch__micro": 1, "data__train": path, "evaluate__every": 0, "batch__global": samples, "run__steps": 2, "checkpoint__every": 1, "learning_rate__schedule": "constant", "learning_rate__warmup_steps": 0}
    for short in (6, 4, 2, 1):
        parts = length // short
        folder.train(f"cut-{short}", 2, **{**few, "batch__ramp": f"[{{ until_step = 1, global = {samples * parts}, sequence_length = {short} }}]"})
        folder.train(f"short-{short}", 1, **{**few, "batch__ramp": "[]", "batch__sequence_length": short, "batch__global": samples * parts, "run__steps": 1})
        check(f"samples cut into {parts} sequences are each seen once", folder.losses(f"cut-{short}")[1] == folder.losses(f"short-{short}")[1],
              f"{folder.losses(f'cut-{short}')} instead of {folder.losses(f'short-{short}')}")
    half = {**few, "batch__global": samples // 2, "run__steps": 2, "optimizer__learning_rate": 1e-30}
    folder.train("halves", 1, **{**half, "batch__ramp": f"[{{ until_step = 1, global = {samples}, sequence_length = 6 }}]"})
    folder.train("whole-halves", 1, **{**half, "batch__ramp": "[]"})
    check("after a phase of short sequences come the samples that follow", folder.losses("halves")[2] == folder.losses("whole-halves")[2],
          f"{folder.losses('halves')} instead of {folder.losses('whole-halves')}")


def check_plan(folder, common, ranks=2):
    """The plan shows each phase, and a run uses what it says to the byte."""
    keys = {**common, "zero__stage": 2}
    plan = folder.plan(ranks, **keys)
    alone = [folder.plan(ranks, **{**keys, "batch__ramp": "[]", "batch__global": row["global"], "batch__sequence_length": row["sequence_length"],
                                   "evaluate__batches": 3 * 12 // row["sequence_length"]})["bytes_per_rank"] for row in plan["ramp"]]
    check("a phase's plan is that of its batch alone", alone == [row["bytes_per_rank"] for row in plan["ramp"]] and len(alone) == 3, f"{alone} {plan['ramp']}")
    room = plan["bytes_per_rank_of_all_phases"]
    check("the run has room for the largest", room >= max(alone + [plan["bytes_per_rank"]]), f"{room} {alone} {plan['bytes_per_rank']}")
    done = folder.train("planned", ranks, **{**keys, "run__threads": 1, "run__log_every": 1})
    text = runs.human_bytes(folder.plan(ranks, "--threads", "1", **keys)["bytes_per_rank_of_all_phases"])
    check("and uses it", f"memory {text} of {text}" in done.stderr, f"{text}\n{done.stderr}")
    said = re.findall(r"phase (\d) starts after step (\d+)", done.stderr)
    check("the log says when phases begin", said == [("2", "2"), ("3", "3"), ("4", "5")], done.stderr)
    check("and the start what each takes", "steps 1 to 2: 8 sequences of 3 tokens, 24 " in done.stderr, done.stderr)
    tokens = [row["tokens_per_second"] * row["seconds"] for row in folder.metrics("planned") if "tokens_per_second" in row]
    check("metrics count the tokens of each phase", all(abs(n - 12 * samples) < 1e-6 * n for n, samples in zip(tokens, SAMPLES)) and len(tokens) == len(SAMPLES), str(tokens))


def check_stops(folder, common):
    """Resumes of each checkpoint on another number of ranks, and of a run that was killed."""
    stages = {1: (3, 3), 2: (2, 1), 3: (3, 2), 4: (1, 0), 5: (2, 3)}
    for step, (ranks, stage) in stages.items():
        name = f"resumed-{step}"
        folder.train(name, ranks, **{**common, "zero__stage": stage, "run__resume": folder.run("reference") + f"/checkpoints/step-{step:08d}"})
        check_same(folder, name, step)
    endless = {**common, **runs.ENDLESS, "batch__ramp": "[{ until_step = 3, global = 2 }, { until_step = 40, global = 8, sequence_length = 6 }]"}
    reference = runs.Reference(folder, **endless)
    for name, step in (("killed-1", 2), ("killed-2", 3), ("killed-3", 5)):
        under_way = folder.start(name, 2, **endless)
        under_way.wait_for_step(step)
        check(f"{name} was killed under way", under_way.kill())
        end = max(folder.losses(name)) + 3
        folder.train(name, 3, **{**endless, "run__steps": end, "zero__stage": 3})
        losses, hashes = reference.at(end)
        check(f"{name} and gone on with other ranks: the bits of an undisturbed run", folder.losses(name) == losses and folder.hashes(name) == hashes,
              f"{folder.losses(name)} instead of {losses}")
    longer = {**common, "run__steps": 4, "learning_rate__schedule": "constant", "checkpoint__verify_resume": True}
    folder.train("proven", 1, **longer)
    done = folder.train("proven", 2, **{**longer, "run__steps": 6})
    check("a resume is proven over a border", "the resume is proven: up to step 6" in done.stderr, done.stderr)


def check_refusals(folder, common):
    def refused(what, words, **keys):
        done = folder.train("refused", 2, expect=2, **{**common, **keys})
        check(f"{what} is refused", words in done.stderr, done.stderr)

    refused("another ramp on a resume", "batch.ramp = ", run__output_dir=folder.run("reference"), batch__ramp="[{ until_step = 2, global = 2 }]")
    refused("a ramp over disks", "with batch.ramp set offload to \"host\" or \"none\"", zero__stage=1, zero__offload_optimizer__device="nvme")
    refused("a phase that ranks cannot share", "in phase 1: mesh.tp 2 does not divide the 9 tokens", mesh__tp=2, batch__global=3, batch__micro=3,
            batch__ramp="[{ until_step = 2, global = 12, sequence_length = 3 }]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    with runs.Folder() as folder:
        common = {**COMMON, "data__validation": folder.data}
        if device == "cuda":
            common.update({**runs.ON_GPUS, "batch__global": 6})
        folder.train("reference", 1, **common)
        for number, (ranks, keys) in third(enumerate(LAYOUTS[device]), device == "cuda"):
            name = f"layout{number}"
            folder.train(name, ranks, **{**common, **keys})
            print(ranks, keys)
            check_same(folder, name)
        if device == "host":
            check_phases(folder, common)
            check_tokens(folder, common)
            check_plan(folder, common)
            check_stops(folder, common)
            check_refusals(folder, common)
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
