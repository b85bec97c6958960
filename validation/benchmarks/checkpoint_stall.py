#!/usr/bin/env python3
"""How long steps wait for a save beside them (checkpoint.async): against a copy of the same bytes in memory, against torch.distributed.checkpoint's async_save of
the same bytes, and as a share of a run that saves each 100 steps. How long they wait for a save by way of a node's disk (checkpoint.staging), beside a plain write
and sync of the same bytes there. And the saves of adapters (lora.rank), which write what steps change, beside the first of a start, which writes the model too.
Rounds are interleaved, since other work changes the machine's speed; medians are compared. No test.
    checkpoint_stall.py TESSERA --python PYTHON [--layers 4] [--width 1024] [--saves 4] [--rounds 3] [--folder DIR]"""
import argparse
import json
import mmap
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

# In a process of its own: seconds of a copy of so many fp32, and of async_save's return. It copies into memory that it keeps, which is its fastest way.
PEER = """
import json, os, shutil, sys, time
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
folder, elements, saves = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
state = {name: torch.randn(elements // 3) for name in ("master", "adam_m", "adam_v")}
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=0, world_size=1)
to = {name: torch.empty_like(value) for name, value in state.items()}
copies, stalls = [], []
for _ in range(saves + 1):
    begin = time.perf_counter()
    for name in state: to[name].copy_(state[name])
    copies.append(time.perf_counter() - begin)
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
# Of tensors in the host's memory, without a GPU that would pin its own; the stager keeps its memory from save to save.
stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False))
for number in range(saves + 1):
    begin = time.perf_counter()
    save = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(f"{folder}/dcp-{number}"), async_stager=stager)
    stalls.append(time.perf_counter() - begin)
    save.result()
    shutil.rmtree(f"{folder}/dcp-{number}")
dist.destroy_process_group()
print(json.dumps({"copies": copies[1:], "stalls": stalls[1:]}))
"""


def train(options, folder, number, **keys):
    """Rows of a run's metrics, and the bytes of a save."""
    data, run = os.path.join(folder, "tokens.bin"), os.path.join(folder, f"run{number}")
    if not os.path.exists(data):
        draw = random.Random(1)
        with open(data, "wb") as out:
            out.write(struct.pack("<4096H", *(draw.randrange(250) for _ in range(4096))))
    W = options.width
    keys = {"model.layers": options.layers, "model.width": W, "model.heads": W // 64, "model.ff_width": W * 11 // 4, "model.vocab": 8192, "batch.global": 1,
            "batch.micro": 1, "batch.sequence_length": 64, "optimizer.learning_rate": 1e-4, "run.device": "host", "run.log_every": 1000, "data.train": data,
            "precision.compute": "bf16", "checkpoint.every": options.between, "checkpoint.keep": 1, "evaluate.every": 0,
            "run.steps": (options.saves + 1) * options.between, **keys}
    sections = {}
    for key, value in keys.items():
        section, leaf = key.split(".")
        sections.setdefault(section, []).append(f"{leaf} = {json.dumps(value)}")
    deck = os.path.join(folder, "stall.toml")
    with open(deck, "w") as out:
        out.writelines(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    subprocess.run([options.tessera, "train", deck, f"run.output_dir={run}"], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    with open(run + "/metrics.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    latest = os.path.realpath(run + "/checkpoints/latest")
    sizes = {name: os.stat(os.path.join(latest, name)) for name in os.listdir(latest)}
    shutil.rmtree(run)
    return rows, sizes


def beside_steps(options, folder, number):
    """Seconds of each save's stall but the first, of the steps that copied for them, of a median step of those that neither copied nor had a write beside them
    (the last before a save), and the bytes of a save."""
    rows, sizes = train(options, folder, number, **{"checkpoint.async": True})
    saved = [row for row in rows if "saved" in row]
    # The first touches the copy's memory for the first time; the last of a run is waited for.
    seconds = {row["step"]: row["seconds"] for row in rows if "loss" in row}
    copying = [seconds[row["saved"] + 1] for row in saved[1:-1]]
    return ([row["save_stall_seconds"] for row in saved[1:-1]], copying, statistics.median(seconds[row["saved"]] for row in saved[1:-1]),
            sum(file.st_size for file in sizes.values()))


def staged(options, folder, number, size):
    """Seconds that steps waited for each save but the first, and of plain writes of as many bytes, synced, to the same disk."""
    disk, plain, buffer = os.path.join(folder, "disk"), [], mmap.mmap(-1, 4 << 20)
    os.makedirs(disk, exist_ok=True)
    buffer.write(random.Random(2).randbytes(len(buffer)))
    rows, _ = train(options, folder, number, **{"checkpoint.staging": disk})
    for _ in range(options.saves - 1):
        file = os.open(os.path.join(disk, "plain"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
        begin = time.perf_counter()
        for at in range(0, size, len(buffer)):
            os.pwritev(file, [buffer], at)
        os.fsync(file)
        plain.append(time.perf_counter() - begin)
        os.close(file)
    os.remove(os.path.join(disk, "plain"))
    return [row["save_stall_seconds"] for row in rows if "saved" in row][1:-1], plain


def adapters(options, folder, number):
    """Seconds of the first save and of each later one, and the MiB that each writes."""
    rows, sizes = train(options, folder, number, **{"lora.rank": 16})
    seconds = [row["save_seconds"] for row in rows if "saved" in row]
    written = sum(file.st_blocks * 512 for name, file in sizes.items() if name != "shard-00001.h5")  # which has what no step changes
    return seconds[:1], seconds[1:], sum(file.st_blocks * 512 for file in sizes.values()) / 2**20, written / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--python", required=True, help="one that has torch")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--between", type=int, default=8, help="steps between saves: long enough that one ends before the next begins")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    options.tessera = os.path.abspath(options.tessera)
    stalls, copying, steps, copies, peers, by_disk, plain, first, later = ([] for _ in range(9))
    with tempfile.TemporaryDirectory(prefix="tessera-stall-", dir=os.path.abspath(options.folder)) as folder:
        for number in range(options.rounds):
            mine, beside, step, size = beside_steps(options, folder, number)
            stalls += mine
            copying += [seconds - step for seconds in beside]
            steps.append(step)
            store = os.path.join(folder, f"peer{number}")
            os.mkdir(store)
            done = subprocess.run([options.python, "-W", "ignore", "-c", PEER, store, str(size // 4), str(options.saves)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            peer = json.loads(done.stdout.splitlines()[-1])
            copies += peer["copies"]
            peers += peer["stalls"]
            shutil.rmtree(store)
            for to, seconds in zip((by_disk, plain), staged(options, folder, number, size)):
                to += seconds
            *seconds, whole, written = adapters(options, folder, number)
            first += seconds[0]
            later += seconds[1]
    stall, copy, peer, step = map(statistics.median, (stalls, copies, peers, steps))
    print(f"{size / 2**20:.0f} MiB a save, {len(stalls)} saves of {options.rounds} rounds, medians (least to most)")
    for what, values in (("stall of checkpoint.async", stalls), ("longer step beside copies", copying), ("copy of the bytes in memory", copies), ("stall of async_save", peers),
                         ("stall of checkpoint.staging", by_disk), ("write and sync of the bytes", plain), (f"adapters, first: {whole:.0f} MiB", first),
                         (f"adapters, later: {written:.0f} MiB", later)):
        print(f"  {what:<28} {statistics.median(values):7.3f} s ({min(values):.3f} to {max(values):.3f})")
    print(f"  {stall / copy:.3f} copies; async_save waits {peer / stall:.2f} times as long; {100 * stall / (stall + 100 * step):.2f} % of a run that saves each 100 "
          f"steps of {step:.3f} s; by way of a disk {statistics.median(by_disk) / statistics.median(plain):.2f} plain writes")


if __name__ == "__main__":
    main()
