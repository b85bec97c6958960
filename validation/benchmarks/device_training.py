#!/usr/bin/env python3
"""`tessera train` on one GPU beside PyTorch on the same one: tokens/s, MFU, memory, and the ratio of the two, for the shapes of shapes.py.

    device_training.py [--shape 124m,1.5b,8b-cut] [--steps 20] [--tessera build/cuda/tessera] [--peer-python python3] [--json]

Both train in bf16 with fp32 master weights on random tokens, one micro-batch a step, and the median of the steps after the fifth counts. Ours runs first,
then peer_gpu.py in a process of its own, so neither holds the other's memory. Where the peer's Python has no torch, ours stands alone and the line says so.
The step behind those that count is traced (run.trace_step), for the share of a step in which the GPU is idle: a lower bound, since gaps inside a task count as
busy. A second run times ZeRO stage 3 with one rank, which gathers and reduces nothing and so should cost nothing.
Exit status 77: there is no GPU.
"""

import argparse
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from shapes import SHAPES  # noqa: E402

DECK = """
[model]
layers = {layers}
width = {width}
heads = {heads}
kv_heads = {kv_heads}
ff_width = {ff}
vocab = {vocab}
tied = {tied}
[batch]
global = {batch}
micro = {batch}
sequence_length = {length}
[data]
train = "tokens.bin"
[optimizer]
learning_rate = 1e-4
[precision]
compute = "bf16"
"""


WARM_UP = 5  # steps that do not count: the first two make the CUDA graph


def steps_of(run):
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.endswith("}\n") and '"loss"' in line]


def train(arguments, scratch, stage):
    """Ends the run after the step that is traced, which comes behind all that count: a checkpoint of the last one, tens of gigabytes, is of no use here.
    Returns the steps that count, the summary of the timeline, and what the run said."""
    run, last = os.path.join(scratch, f"stage{stage}"), arguments.steps + WARM_UP
    timeline = os.path.join(run, "trace", f"step-{last + 1:08d}", "rank-0000.json")
    command = [arguments.tessera, "train", "deck.toml", "run.steps=1000000", "run.device=cuda", f"run.output_dir={run}", f"zero.stage={stage}",
               f"run.trace_step={last + 1}"]
    log = os.path.join(scratch, "log")
    with open(log, "w") as out:
        process = subprocess.Popen(command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        while process.poll() is None and not os.path.exists(timeline):
            time.sleep(0.05)
        process.kill()
        process.wait()
    with open(log) as file:
        said = file.read()
    if not os.path.exists(timeline):
        if "there is no GPU" in said or "no CUDA backend" in said:
            print("skipped: " + said.strip().splitlines()[-1], file=sys.stderr)
            sys.exit(77)
        sys.exit(f"device_training: {arguments.tessera} train ended with status {process.returncode}\n{said[-4000:]}")
    with open(timeline) as file:
        return steps_of(run)[WARM_UP:last], json.load(file)["otherData"], said


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def idle_of(timeline):
    """The share of a step in which the GPU does nothing, and of which steps it is. Of the steps as they run, where the timeline can tell: what their tasks,
    timed one by one, leave of them. Else of the step whose tasks were timed, which has no CUDA graph."""
    gaps = timeline.get("launch_gap_share", -1)
    return (gaps, "steps as they run") if gaps >= 0 else (timeline["idle_share"], "traced step")


def ours(arguments, shape):
    with tempfile.TemporaryDirectory() as scratch:
        tokens, chance = shape["length"] * shape["batch"] * 4 + 1, random.Random(1)
        top = min(shape["vocab"], 65536)
        with open(os.path.join(scratch, "tokens.bin"), "wb") as out:
            out.write(struct.pack(f"<{tokens}H", *(chance.randrange(top) for _ in range(tokens))))
        with open(os.path.join(scratch, "deck.toml"), "w") as out:
            out.write(DECK.format(**{**shape, "tied": str(shape["tied"]).lower()}))
        rows, timeline, said = train(arguments, scratch, arguments.stage)
        plan = subprocess.run([arguments.tessera, "plan", "deck.toml", "--ranks", "1", "--json", "run.steps=1", "run.device=cuda",
                               f"zero.stage={arguments.stage}"], cwd=scratch, capture_output=True, text=True, check=True)
        device_bytes = json.loads(plan.stdout)["tiers"]["device"]["bytes"]
        outside = [line for line in said.splitlines() if "beside the plan" in line]
        start = re.search(r"first step done ([0-9.]+) s after launch", said)
        sharded = train(arguments, scratch, 3)[0] if arguments.stage != 3 else rows
    idle, idle_in = idle_of(timeline)
    return {"tokens_per_second": median(rows, "tokens_per_second"), "mfu_full": median(rows, "mfu"), "mfu_causal": median(rows, "mfu_causal"),
            "outside_the_plan": outside[-1].strip() if outside else "", "device_bytes": device_bytes, "idle_share": idle, "idle_in": idle_in, "timeline": timeline,
            "start_seconds": float(start[1]) if start else None, "stage3_tokens_per_second": median(sharded, "tokens_per_second")}


def peer(arguments, name):
    done = subprocess.run([arguments.peer_python, os.path.join(HERE, "peer_gpu.py"), "--shape", name, "--steps", str(arguments.steps), "--json"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 77:
        return None, (done.stderr.strip().splitlines() or ["no torch"])[-1]
    if done.returncode != 0:
        return None, f"peer_gpu.py ended with status {done.returncode}: {done.stderr[-1000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="124m,1.5b,8b-cut")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stage", type=int, default=0, help="ZeRO stage of ours")
    parser.add_argument("--tessera", default=os.environ.get("TESSERA", "build/cuda/tessera"))
    parser.add_argument("--peer-python", default="python3")
    parser.add_argument("--json", action="store_true", help="one JSON object a shape")
    arguments = parser.parse_args()
    arguments.tessera = os.path.abspath(arguments.tessera)
    for name in arguments.shape.split(","):
        if name not in SHAPES:
            parser.error(f"no shape {name}; there are {', '.join(SHAPES)}")
        mine = ours(arguments, SHAPES[name])
        theirs, why = peer(arguments, name)
        result = {"shape": name, "ours": mine, "peer": theirs, "no_peer": why}
        text = f"{name}: {mine['tokens_per_second']:.0f} tokens/s, MFU {100 * mine['mfu_full']:.1f} % full, {100 * mine['mfu_causal']:.1f} % causal, " \
               f"{mine['device_bytes'] / 2**30:.2f} GiB planned; idle {100 * mine['idle_share']:.1f} % ({mine['idle_in']}, target below 3 %); " \
               f"stage 3 {mine['stage3_tokens_per_second']:.0f} tokens/s; first step done {mine['start_seconds']} s after launch"
        if theirs:
            result["ratio"] = mine["tokens_per_second"] / theirs["tokens_per_second"]
            result["memory_ratio"] = mine["device_bytes"] / theirs["peak_bytes"]
            text += f"; PyTorch {theirs['tokens_per_second']:.0f} tokens/s in {theirs['peak_bytes'] / 2**30:.2f} GiB: ratio {result['ratio']:.2f} " \
                    f"(target 1.15), memory {result['memory_ratio']:.2f} (target 0.85)"
        else:
            text += f"; no peer ({why})"
        print(json.dumps(result) if arguments.json else text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
