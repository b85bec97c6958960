#!/usr/bin/env python3
"""The simulator beside this machine: predicted and measured step time of some configurations, with machine profiles measured in the same run.

    simulator_error.py [--tessera build/host/tessera] [--steps 12] [--only TEXT] [--list] [--tasks] [--disk FOLDER] [--keep FOLDER] [--json]

A profile is measured for each launch (1 rank with all cores; 2 ranks with half of them each), since rates are those of a rank among its neighbours. Then
each configuration is planned with its profile and trained on random tokens for --steps steps; the median of all but the first three counts. One line a
configuration: predicted, measured, error; then the mean and the largest error. --tasks adds, of a traced step, the kinds of tasks whose predictions differ
most from what was measured. To be run on an idle machine: what else runs shows up as error. Standard library only; no time is judged here.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "validation", "program", "resume"))

SMALL = dict(layers=4, width=256, heads=8, kv_heads=4, ff=704, vocab=512, length=256, micro=4)
MIDDLE = dict(layers=6, width=512, heads=8, kv_heads=8, ff=1408, vocab=8192, length=512, micro=2)
LARGE = dict(layers=12, width=768, heads=12, kv_heads=12, ff=2048, vocab=32768, length=1024, micro=1)
HOST = {"zero.offload_optimizer.device": "host"}
DISK = {"zero.offload_optimizer.device": "nvme"}
# Name, shape, ranks, micro-batches of a rank in a step, other keys.
CONFIGURATIONS = [
    ("small, bf16", SMALL, 1, 4, {}),
    ("small, fp32", SMALL, 1, 4, {"precision.compute": "fp32"}),
    ("small, bf16, stage 3", SMALL, 2, 2, {"zero.stage": 3}),
    ("small, reproducible, stage 2", SMALL, 2, 2, {"zero.stage": 2, "run.reproducible": "true"}),
    ("middle, bf16", MIDDLE, 1, 4, {}),
    ("middle, fp32, full recompute", MIDDLE, 1, 2, {"precision.compute": "fp32", "activation.recompute": "full"}),
    ("middle, bf16, stage 0", MIDDLE, 2, 2, {"zero.stage": 0}),
    ("middle, bf16, stage 1", MIDDLE, 2, 2, {"zero.stage": 1}),
    ("middle, bf16, stage 2, optimizer on the host", MIDDLE, 2, 2, {"zero.stage": 2, **HOST}),
    ("middle, bf16, stage 3, all on the host", MIDDLE, 2, 2, {"zero.stage": 3, **HOST, "zero.offload_param.device": "host"}),
    ("middle, bf16, optimizer on the host", MIDDLE, 1, 2, {"zero.stage": 1, **HOST}),
    ("middle, bf16, optimizer on a disk", MIDDLE, 1, 2, {"zero.stage": 1, **DISK}),
    ("middle, bf16, stage 2, optimizer on a disk", MIDDLE, 2, 2, {"zero.stage": 2, **DISK}),
    ("middle, bf16, stage 3, all on a disk", MIDDLE, 2, 2, {"zero.stage": 3, **DISK, "zero.offload_param.device": "nvme"}),
    ("large, bf16", LARGE, 1, 2, {}),
    ("large, bf16, stage 3, all on a disk", LARGE, 1, 1, {"zero.stage": 3, **DISK, "zero.offload_param.device": "nvme"}),
    ("large, bf16, selective recompute, stage 3", LARGE, 2, 1, {"zero.stage": 3, "activation.recompute": "selective"}),
    ("large, fp32, stage 2", LARGE, 2, 1, {"zero.stage": 2, "precision.compute": "fp32"}),
]
UNCOUNTED = 3  # steps at the start, in which caches fill and pages come


def call(command, folder):
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def overrides(shape, ranks, micro_batches, keys):
    all_keys = {
        "model.layers": shape["layers"], "model.width": shape["width"], "model.heads": shape["heads"], "model.kv_heads": shape["kv_heads"],
        "model.ff_width": shape["ff"], "model.vocab": shape["vocab"], "batch.micro": shape["micro"],
        "batch.global": shape["micro"] * ranks * micro_batches, "batch.sequence_length": shape["length"], "optimizer.learning_rate": 1e-4,
        "run.device": "host", "evaluate.every": 0, "checkpoint.every": 0, "run.log_every": 1000, **keys}
    return [f"{key}={value}" for key, value in all_keys.items()]


class Lab:
    def __init__(self, options, folder):
        os.environ["TESSERA"] = options.tessera
        from runs import MPIEXEC  # of the MPI that tessera was built with
        self.options, self.folder, self.mpiexec, self.profiles = options, folder, MPIEXEC, {}
        self.disk = os.path.realpath(options.disk) if options.disk else folder
        chance = random.Random(1)
        with open(os.path.join(folder, "tokens.bin"), "wb") as out:
            out.write(struct.pack("<200001H", *(chance.randrange(512) for _ in range(200001))))
        with open(os.path.join(folder, "deck.toml"), "w") as out:
            out.write('[data]\ntrain = "tokens.bin"\n')

    def launch(self, ranks):
        return [self.options.tessera] if ranks == 1 else [self.mpiexec, "-n", str(ranks), self.options.tessera]

    def threads(self, ranks):
        return max(1, len(os.sched_getaffinity(0)) // ranks)

    def profile(self, ranks):
        if ranks not in self.profiles:
            path = os.path.join(self.folder, f"machine-{ranks}.toml")
            done = call([*self.launch(ranks), "report", "--measure", "--device", "host", "--threads", str(self.threads(ranks)),
                         "--disk", self.disk], self.folder)
            with open(path, "w") as out:
                out.write(done.stdout)
            self.profiles[ranks] = path
        return self.profiles[ranks]

    def predict(self, ranks, keys):
        trace = os.path.join(self.folder, "predicted.json")
        done = call([self.options.tessera, "plan", "deck.toml", *keys, "run.steps=1", "--ranks", str(ranks), "--machine", self.profile(ranks), "--json", "--trace", trace],
                    self.folder)
        return json.loads(done.stdout)["prediction"], tasks_of(trace)

    def measure(self, number, ranks, keys):
        steps, run = self.options.steps, os.path.join(self.folder, f"run-{number}")
        shutil.rmtree(run, ignore_errors=True)
        call([*self.launch(ranks), "train", "deck.toml", *keys, f"run.output_dir={run}", f"run.steps={steps}", f"run.trace={steps}",
              f"run.threads={self.threads(ranks)}"], self.folder)
        with open(os.path.join(run, "metrics.jsonl")) as rows:
            seconds = [row["seconds"] for row in map(json.loads, rows) if "seconds" in row and "loss" in row]
        trace = next(os.path.join(at, "rank-0000.json") for at, _, files in os.walk(run) if "rank-0000.json" in files)
        return statistics.median(seconds[UNCOUNTED:-1]), tasks_of(trace)


def tasks_of(trace):
    """Seconds of a step by kind of task, layers taken together."""
    kinds = {}
    with open(trace) as file:
        for event in json.load(file)["traceEvents"]:
            if event["ph"] == "X":
                kind = re.sub(r"layers\.\d+", "layers.*", event["name"])
                kinds[kind] = kinds.get(kind, 0) + event["dur"] / 1e6
    return kinds


def print_tasks(predicted, measured):
    worst = sorted(set(predicted) | set(measured), key=lambda kind: -abs(predicted.get(kind, 0) - measured.get(kind, 0)))[:6]
    for kind in worst:
        print(f"      {kind:44} {1e3 * predicted.get(kind, 0):10.3f} ms {1e3 * measured.get(kind, 0):10.3f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default=os.path.join(ROOT, "build", "host", "tessera"))
    parser.add_argument("--steps", type=int, default=12, help="of each configuration, at least 6")
    parser.add_argument("--only", default="", help="configurations whose name holds this text")
    parser.add_argument("--list", action="store_true", help="name the configurations")
    parser.add_argument("--tasks", action="store_true", help="the kinds of tasks that are predicted worst")
    parser.add_argument("--disk", help="folder on the disk of offloaded state; else the one of profiles and runs")
    parser.add_argument("--keep", help="folder for profiles, traces and runs; else they are removed")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    options.tessera, options.steps = os.path.realpath(options.tessera), max(6, options.steps)
    chosen = [c for c in CONFIGURATIONS if options.only in c[0]]
    if options.list:
        print("\n".join(f"{ranks} ranks: {name}" for name, _, ranks, _, _ in chosen))
        return
    folder = options.keep or tempfile.mkdtemp(prefix="simulator_error.")
    os.makedirs(folder, exist_ok=True)
    try:
        lab, errors = Lab(options, os.path.realpath(folder)), []
        if not options.json:
            print(f"{'ranks':5}  {'configuration':46} {'predicted':>12} {'measured':>12} {'error':>8}")
        for number, (name, shape, ranks, micro_batches, keys) in enumerate(chosen):
            said = overrides(shape, ranks, micro_batches, {"zero.offload_optimizer.nvme_path": lab.disk, **keys} if "nvme" in keys.values() else keys)
            prediction, predicted_tasks = lab.predict(ranks, said)
            measured, measured_tasks = lab.measure(number, ranks, said)
            error = prediction["step_seconds"] / measured - 1
            errors.append(error)
            if options.json:
                print(json.dumps({"configuration": name, "ranks": ranks, "predicted_seconds": prediction["step_seconds"], "measured_seconds": measured,
                                  "error": error, "mfu": prediction["mfu"]["causal"]}), flush=True)
                continue
            print(f"{ranks:5}  {name:46} {1e3 * prediction['step_seconds']:9.2f} ms {1e3 * measured:9.2f} ms {100 * error:7.1f} %", flush=True)
            if options.tasks:
                print_tasks(predicted_tasks, measured_tasks)
        if errors and not options.json:
            sizes = [abs(e) for e in errors]
            print(f"error of {len(errors)} configurations: mean {100 * statistics.mean(sizes):.1f} %, largest {100 * max(sizes):.1f} %")
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
