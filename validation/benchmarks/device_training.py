#!/usr/bin/env python3
"""`tessera train` on one GPU beside PyTorch on the same one: tokens/s, MFU, memory, and the ratio of the two, for the shapes of shapes.py.

    device_training.py [--shape 124m,1.5b,8b-cut] [--steps 20] [--tessera build/cuda/tessera] [--peer-python python3] [--keep FOLDER] [--json]

Both train in bf16 with fp32 master weights on random tokens, one micro-batch a step; the steps behind the first few count. Every run is a process of its
own, so none holds another's memory. Ours runs at ZeRO stages 0, 3, 0, 3 (stage 3 on one rank gathers and reduces nothing and so should cost nothing),
then the peer in each of the ways in which it may be fastest, then ours at stage 0 again: clocks and heat weigh on both. Where the peer's Python has no
torch, ours stands alone and the line says so. Utilisation is of the rate of the faster of both programs' square products.
The step behind those that count is traced (run.trace), for the share of a step in which the GPU is idle: a lower bound, since gaps inside a task count as
busy. Then, before the run is ended, nvidia-smi is asked for the memory in use.
With --json, what is known of a shape is printed after each run, as one object a line; the last line of a shape is whole. --done FILE takes such an object
of an earlier call that was cut, and goes on after the last of its runs.
Exit status 77: there is no GPU; 1: a shape failed, and the others were run.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "scripts")]
from gpu_check_parts import processes  # noqa: E402
from gpu_check_parts.report import clipped  # noqa: E402
from gpu_check_parts.smoke import rows_said  # noqa: E402
from shapes import SHAPES, flops_per_token  # noqa: E402

# Of the host's memory only checkpoints would use much, and none is written; a virtual machine may have little of it at first.
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
[memory]
host = "100 GiB"
"""
WARM_UP = 5  # steps that do not count: the first two make the CUDA graph
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Ways of the peer: a name, and peer_gpu.py's options. CUDA graphs save what launches cost, which small shapes feel most.
PEERS = {"compiled": ["--mode", "bf16"], "compiled, CUDA graphs": ["--mode", "bf16", "--compile", "reduce-overhead"],
         "autocast, compiled": ["--mode", "autocast"]}
PEERS_OF = {"124m": list(PEERS), "1.5b": ["compiled", "compiled, CUDA graphs"], "8b-cut": ["compiled"], "tiny": ["compiled"]}
# Ways that are left out: they cannot be the fastest, and would take minutes of a GPU.
SLOW_PEERS = {shape: "autocast not tried: at this size it casts all weights in each step, and its residual stream is fp32" for shape in ("1.5b", "8b-cut")}


class NoGpu(Exception):
    pass


class Failed(Exception):
    """A run of ours, or all that depends on it."""


def steps_of(run):
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.endswith("}\n") and '"loss"' in line]


def device_memory():
    """Bytes of the first GPU that are in use, by anyone; None where nvidia-smi does not say."""
    done = processes.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], 20)
    first = done.out.split()[:1]
    return int(first[0]) << 20 if done.status == 0 and first and first[0].isdigit() else None


def used_memory(pid, before):
    """(bytes of the GPU that the process uses, by whose word), None where nobody says. In some machines nvidia-smi lists no process, or numbers them
    otherwise: then it is what the device holds more than before the run."""
    done = processes.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], 20)
    for line in done.out.splitlines() if done.status == 0 else []:
        words = [word.strip() for word in line.split(",")]
        if words[0] == str(pid) and words[-1].isdigit():
            return int(words[-1]) << 20, "nvidia-smi's list of processes"
    now = device_memory()
    return (now - before, "what the device holds more than before") if now is not None and before is not None else (None, "")


def overhead_bytes(said):
    """The sum that the run gives for what stands beside the plan, of its last such line."""
    found = re.findall(r"beside the plan.*: ([0-9.]+) ([KMGT]?i?B)\s*$", said, re.MULTILINE)
    return float(found[-1][0]) * UNITS[found[-1][1]] if found else 0


class Ours:
    """Runs of tessera train of one shape."""

    def __init__(self, options, name, scratch):
        self.options, self.name, self.shape, self.scratch, self.count = options, name, SHAPES[name], scratch, 0
        libraries = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
        # Choices of kernels are found anew, and kept for the later runs, as with a user.
        self.environment = {**os.environ, **libraries, "XDG_CACHE_HOME": os.path.join(scratch, "cache")}
        tokens, chance = self.shape["length"] * self.shape["batch"] * 4 + 1, random.Random(1)
        top = min(self.shape["vocab"], 65536)
        with open(os.path.join(scratch, "tokens.bin"), "wb") as out:
            out.write(struct.pack(f"<{tokens}H", *(chance.randrange(top) for _ in range(tokens))))
        with open(os.path.join(scratch, "deck.toml"), "w") as out:
            out.write(DECK.format(**{**self.shape, "tied": str(self.shape["tied"]).lower()}))

    def train(self, stage):
        """Kills the run after the step that is traced, which comes behind all that count: a checkpoint, tens of gigabytes, is of no use, and its pages on
        their way to the disk would slow the next start."""
        self.count += 1
        last = self.options.steps + WARM_UP
        run = os.path.join(self.scratch, f"run{self.count}-stage{stage}")
        timeline = os.path.join(run, "trace", f"step-{last + 1:08d}", "rank-0000.json")
        command = [self.options.tessera, "train", "deck.toml", "run.steps=1000000", "run.device=cuda", f"run.output_dir={run}", f"zero.stage={stage}",
                   f"run.trace={last + 1}"]
        log, before, start_seconds = run + ".log", device_memory(), None
        with open(log, "w") as out:
            begin = time.monotonic()
            process = processes.start(command, cwd=self.scratch, stdout=out, stderr=out, env=self.environment)
            try:
                while process.poll() is None and not os.path.exists(timeline) and time.monotonic() - begin < self.options.limit:
                    if start_seconds is None and steps_of(run):
                        start_seconds = time.monotonic() - begin
                    time.sleep(0.02 if start_seconds is None else 0.05)
                late = process.poll() is None and not os.path.exists(timeline)
                used, used_by = used_memory(process.pid, before) if os.path.exists(timeline) else (None, "")
            finally:
                processes.end(process, 0)
        with open(log, errors="replace") as file:
            said = file.read()
        if not os.path.exists(timeline):
            if "has no GPU to use" in said or "no CUDA backend" in said:
                raise NoGpu(said.strip().splitlines()[-1])
            how = f"did not trace step {last + 1} within {self.options.limit:.0f} s" if late else f"ended with status {process.returncode}"
            raise Failed(f"{self.options.tessera} train at stage {stage} {how}\n{clipped(said, 4000)}")
        with open(timeline) as file:
            summary = json.load(file)["otherData"]
        rows = steps_of(run)
        counted = rows[WARM_UP:last]
        full = flops_per_token(self.shape)[0]
        # Tokens a second over all steps that count, as the peer is timed. The program's utilisation is of the rate that it measured of its own products.
        return {"stage": stage, "tokens_per_second": statistics.harmonic_mean([row["tokens_per_second"] for row in counted]),
                "matmul_flops": statistics.median(row["tokens_per_second"] * full / row["of_product"] for row in counted), "timeline": summary,
                "overhead_bytes": overhead_bytes(said), "used": (used, used_by), "choices_kept": self.count > 1, "notes": list(rows_said(f"training {self.name}", said)),
                "start_seconds": start_seconds if start_seconds is not None else time.monotonic() - begin}

    def planned_bytes(self):
        plan = processes.run([self.options.tessera, "plan", "deck.toml", "--ranks", "1", "--json", "run.steps=1", "run.device=cuda", "zero.stage=0"], 60,
                             self.scratch, self.environment)
        if plan.status != 0:
            raise Failed(f"tessera plan: status {plan.status}\n{plan.text()}")
        return json.loads(plan.out)["tiers"]["device"]["bytes"]

    def keep(self, folder):
        """Logs, metrics and timelines, without tokens and checkpoints."""
        for where, _, files in os.walk(self.scratch):
            for name in files:
                if name.endswith((".log", ".jsonl", ".toml", ".json")):
                    to = os.path.join(folder, os.path.relpath(where, self.scratch))
                    os.makedirs(to, exist_ok=True)
                    shutil.copy2(os.path.join(where, name), to)


def idle_of(timeline):
    """The least share of a step in which the GPU does nothing: of the steps as they run, what their tasks, timed one by one, leave of them. None where
    tasks took longer while they were timed than a step does, which says nothing."""
    gaps = timeline.get("launch_gap_share", -1)
    return gaps if gaps >= 0 else None


def ours_of(runs, device_bytes):
    whole, sharded = [run for run in runs if run["stage"] == 0], [run for run in runs if run["stage"] == 3]
    first, beside = whole[0], whole[:max(1, len(sharded))]
    rates = [run["tokens_per_second"] for run in whole]
    tokens = statistics.mean(rates)
    used, used_by = first["used"]
    later = (run["start_seconds"] for run in whole if run["choices_kept"])
    return {"tokens_per_second": tokens, "runs": " ".join(f"{rate:.0f}" for rate in rates), "device_bytes": device_bytes,
            "overhead_bytes": first["overhead_bytes"], "used_bytes": used, "used_by": used_by, "expected_bytes": device_bytes + first["overhead_bytes"],
            "idle_share": idle_of(first["timeline"]), "timeline": first["timeline"], "start_seconds": first["start_seconds"],
            "later_start_seconds": next(later, None),
            "notes": first.get("notes", []),
            "stage3_tokens_per_second": statistics.mean(run["tokens_per_second"] for run in sharded) if sharded else None,
            "stage0_beside_stage3": statistics.mean(run["tokens_per_second"] for run in beside), "matmul_flops": first["matmul_flops"]}


def peer(options, name, how):
    """(what peer_gpu.py measured, None) or (None, why not, with whether it is merely not there)"""
    done = processes.run([options.peer_python, os.path.join(HERE, "peer_gpu.py"), "--shape", name, "--steps", str(options.steps), "--json", *PEERS[how]],
                         options.peer_limit)
    rows = [line for line in done.out.splitlines() if line.startswith("{")]
    if done.status == 0 and rows:
        return {**json.loads(rows[-1]), "how": how}, None
    absent = done.status == 77
    why = (done.err.strip().splitlines() or ["no torch"])[-1] if absent else f"peer_gpu.py ended with status {done.status}: {done.err[-1500:]}"
    return None, {"how": how, "why": why, "absent": absent}


def compare(result, device_bytes):
    """What the runs so far come to."""
    shape, done = SHAPES[result["shape"]], result["done"]
    peers = [each["peer"] for each in done if each.get("peer")]
    result["no_peer"] = [each["no_peer"] for each in done if each.get("no_peer")]
    ours = result["ours"] = ours_of([each["ours"] for each in done if each.get("ours")], device_bytes)
    best = result["peer"] = max(peers, key=lambda p: p["tokens_per_second"]) if peers else None
    result["peers"] = {p["how"]: p["tokens_per_second"] for p in peers}
    rates = {"ours": ours["matmul_flops"], **({"PyTorch's": best["matmul_flops"]} if best else {})}
    result["matmul_of"] = max(rates, key=rates.get)
    result["matmul_flops"] = rates[result["matmul_of"]]
    full, causal = flops_per_token(shape)
    result["flops_full"] = ours["tokens_per_second"] * full
    result["mfu_full"], result["mfu_causal"] = result["flops_full"] / result["matmul_flops"], ours["tokens_per_second"] * causal / result["matmul_flops"]
    if best:
        result["ratio"] = ours["tokens_per_second"] / best["tokens_per_second"]
        result["peer_mfu_full"] = best["tokens_per_second"] * full / result["matmul_flops"]
        if best["peak_bytes"]:
            result["memory_ratio"] = ours["device_bytes"] / best["peak_bytes"]


def earlier(options, name):
    """The runs of this shape that another call has done already."""
    if not options.done:
        return []
    with open(options.done) as file:
        result = json.load(file)
    return result["done"] if result["shape"] == name else []


def measure(options, name, say):
    """Runs what is left of a shape's schedule; `say` is given the result after each run."""
    done = earlier(options, name)
    result = {"shape": name, "whole": False, "ours": None, "peer": None, "no_peer": [], "not_tried": SLOW_PEERS.get(name), "done": done,
              "runs_of_earlier_calls": len(done)}
    with tempfile.TemporaryDirectory() as scratch:
        ours = Ours(options, name, scratch)
        try:
            device_bytes = ours.planned_bytes()
            for what in [0, 3, 0, 3, *PEERS_OF[name], 0][len(done):]:
                if isinstance(what, int):
                    done.append({"ours": ours.train(what)})
                else:
                    theirs, why = peer(options, name, what)
                    done.append({"peer": theirs, "no_peer": why})
                    if why and why["absent"]:
                        break  # neither is there in another way, and ours needs no turn behind it
                compare(result, device_bytes)
                say(result)
            compare(result, device_bytes)
            result["whole"] = True
        except Failed as error:
            result["error"] = str(error)
        finally:
            if options.keep:
                ours.keep(os.path.join(options.keep, name) if "," in options.shape else options.keep)
    return result


def text_of(result):
    name, ours, theirs = result["shape"], result["ours"], result["peer"]
    if result.get("error"):
        return f"{name}: failed: {result['error']}"
    idle = "not measurable" if ours["idle_share"] is None else f"at least {100 * ours['idle_share']:.1f} %"
    text = f"{name}: {ours['tokens_per_second']:.0f} tokens/s (runs {ours['runs']}), MFU {100 * result['mfu_full']:.1f} % full, " \
           f"{100 * result['mfu_causal']:.1f} % causal of {result['matmul_flops'] / 1e12:.1f} TFLOP/s, {ours['device_bytes'] / 2**30:.2f} GiB planned; idle " \
           f"{idle} (target below 3 %); stage 3 {ours['stage3_tokens_per_second']:.0f} tokens/s; first step {ours['start_seconds']:.2f} s after launch"
    if theirs:
        text += f"; PyTorch ({theirs['how']}, attention of {theirs.get('attention', 'unknown')}) {theirs['tokens_per_second']:.0f} tokens/s: ratio {result['ratio']:.2f} (target 1.15)"
        if theirs["peak_bytes"]:
            text += f", memory {result['memory_ratio']:.2f} of {theirs['peak_bytes'] / 2**30:.2f} GiB (target 0.85)"
    text += f"; {result['not_tried']}" if theirs and result["not_tried"] else ""
    return text + "".join(f"; no peer, {why['how']} ({why['why']})" for why in result["no_peer"])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="124m,1.5b,8b-cut")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tessera", default=os.environ.get("TESSERA", "build/cuda/tessera"))
    parser.add_argument("--library-path", help="LD_LIBRARY_PATH of tessera alone; the peer keeps its own libraries")
    parser.add_argument("--peer-python", default="python3")
    parser.add_argument("--limit", type=float, default=240, help="seconds that a run of ours may take")
    parser.add_argument("--peer-limit", type=float, default=480, help="seconds that a run of the peer may take, its compiler included")
    parser.add_argument("--done", metavar="FILE", help="a line that --json printed in an earlier call: its runs are not run again")
    parser.add_argument("--keep", help="folder for logs, metrics and timelines")
    parser.add_argument("--json", action="store_true", help="one JSON object after each run")
    options = parser.parse_args()
    options.tessera = os.path.abspath(options.tessera)
    for name in options.shape.split(","):
        if name not in SHAPES:
            parser.error(f"no shape {name}; there are {', '.join(SHAPES)}")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended too
    failed = False
    for name in options.shape.split(","):
        try:
            result = measure(options, name, lambda part: options.json and print(json.dumps(part), flush=True))
        except NoGpu as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 77
        except (OSError, ValueError, KeyError, ArithmeticError, statistics.StatisticsError) as error:  # the next shape has its turn all the same
            result = {"shape": name, "whole": False, "ours": None, "peer": None, "no_peer": [], "error": repr(error)}
        failed |= "error" in result or any(not why["absent"] for why in result["no_peer"])
        print(json.dumps(result) if options.json else text_of(result), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
