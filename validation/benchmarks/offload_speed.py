#!/usr/bin/env python3
"""Steps of offloaded state beside the bounds of this machine, measured in the same run.

    offload_speed.py [--tessera build/host/tessera] [--disk FOLDER] [--rounds 3] [--only disk|host] [--tasks]

disk: the update of a model of 170 M parameters whose master weights and moments lie on a disk (one rank, all cores): the bytes that it reads and writes, from
its first read to its last write, beside what fio reads and writes at once on that disk (direct, blocks of 1 MiB, the best of one mixed job and of a reader beside
a writer, 8 and 32 requests each). The step's forward pass, of 64 tokens, runs in the same time.

host: a step of a GPT-2-124M-sized model with its optimizer on the host, and with all of its state there, beside the largest of three bounds: compute (the same
step without offload, its update taken away), copies (bytes up and down at the rates of `tessera report --measure`) and memory (the update's bytes at AdamW's
rate there). On host ranks one set of cores does all three.

Rounds are interleaved, each compares within itself, and medians count. To be run on an idle machine. Standard library and fio."""
import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from simulator_error import LARGE, ROOT, UNCOUNTED, Lab, call, overrides  # noqa: E402

WIDE = dict(layers=8, width=1024, heads=8, kv_heads=8, ff=2816, vocab=32768, length=64, micro=1)
ON_DISK = {"zero.stage": 1, "zero.offload_optimizer.device": "nvme"}
ON_HOST = [("optimizer on the host", {"zero.stage": 1, "zero.offload_optimizer.device": "host"}),
           ("all on the host", {"zero.stage": 3, "zero.offload_optimizer.device": "host", "zero.offload_param.device": "host"})]


class Run:
    """Steps of a run: their median seconds and, of the last one, its tasks."""

    def __init__(self, lab, name, steps, keys):
        folder = os.path.join(lab.folder, "run-" + name.replace(" ", "-"))
        shutil.rmtree(folder, ignore_errors=True)
        call([*lab.launch(1), "train", "deck.toml", *keys, f"run.output_dir={folder}", f"run.steps={steps}", f"run.trace={steps}",
              f"run.threads={lab.threads(1)}"], lab.folder)
        with open(os.path.join(folder, "metrics.jsonl")) as rows:
            seconds = [row["seconds"] for row in map(json.loads, rows) if "seconds" in row and "loss" in row]
        self.seconds = statistics.median(seconds[UNCOUNTED - 1:-1])
        path = next(os.path.join(at, "rank-0000.json") for at, _, files in os.walk(folder) if "rank-0000.json" in files)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.tasks = [(lanes[e["tid"]], e["name"], e["ts"] / 1e6, e["dur"] / 1e6, e["args"]["bytes_moved"]) for e in events if e["ph"] == "X"]

    def seconds_of(self, lane, *beginnings):
        return sum(d for where, name, _, d, _ in self.tasks if where == lane and (not beginnings or name.startswith(beginnings)))

    def bytes_of(self, *which):
        return sum(moved for where, _, _, _, moved in self.tasks if where in which)


def fio(folder, size, depth, mixed):
    """Bytes a second that fio reads and writes at once; both as much."""
    common = ["--bs=1m", "--ioengine=io_uring", "--direct=1", f"--iodepth={depth}", f"--filename={os.path.join(folder, 'fio')}", "--overwrite=1"]
    if mixed:
        jobs = ["--name=both", "--rw=rw", f"--size={size}"]
    else:
        jobs = ["--name=reader", "--rw=read", f"--size={size // 2}", "--name=writer", "--rw=write", f"--size={size // 2}", f"--offset={size // 2}"]
    done = call(["fio", *common, *jobs, "--output-format=json"], folder)
    found = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    moved = sum(job[way]["io_bytes"] for job in found for way in ("read", "write"))
    return moved / max(job[way]["runtime"] / 1e3 for job in found for way in ("read", "write"))


def updated(run):
    """Bytes that the update moved to and from the disk, and its seconds, from its first read to its last write."""
    moves = [(at, at + d, moved) for lane, _, at, d, moved in run.tasks if lane.startswith("disk")]
    return sum(moved for _, _, moved in moves), max(end for _, end, _ in moves) - min(begin for begin, _, _ in moves)


def disk(lab, options):
    keys = overrides(WIDE, 1, 1, {**ON_DISK, "zero.offload_optimizer.nvme_path": lab.disk})
    size = 2 << 30
    fio(lab.disk, size, 8, True)  # writes the file
    rates, shares = [], []
    for number in range(options.rounds):
        best = max(fio(lab.disk, size, depth, mixed) for depth in (8, 32) for mixed in (True, False))
        run = Run(lab, f"disk-{number}", 4, keys)
        moved, seconds = updated(run)
        rates.append(moved / seconds), shares.append(moved / seconds / best)
        print(f"  update from a disk: {moved / 1e9:.2f} GB in {seconds:.3f} s, {moved / seconds / 1e9:.2f} GB/s; fio {best / 1e9:.2f} GB/s: {100 * shares[-1]:.1f} %",
              flush=True)
        if options.tasks:
            for lane in ("disk_read", "cpu_optimizer", "disk_write", "upload"):
                print(f"      lane {lane:14} {run.seconds_of(lane):.3f} s")
    os.remove(os.path.join(lab.disk, "fio"))
    print(f"update from a disk: {statistics.median(rates) / 1e9:.2f} GB/s read and written, {100 * statistics.median(shares):.1f} % of fio")


def rate(profile, key):
    section, leaf = key.split(".")
    found = re.search(rf"^\[{section}\][^\[]*?^{leaf} = \"([\d.e+]+) (\w+)/s\"", profile, flags=re.M | re.S)
    return float(found[1]) * {"TB": 1e12, "GB": 1e9, "MB": 1e6}[found[2]]


def host(lab, options):
    with open(lab.profile(1)) as file:
        profile = file.read()
    steps, micro = 6, 2
    keys = {name: overrides(LARGE, 1, micro, extra) for name, extra in [("none", {"zero.stage": 0}), *ON_HOST]}
    found = {name: [] for name, _ in ON_HOST}
    for number in range(options.rounds):
        none = Run(lab, f"none-{number}", steps, keys["none"])
        update = none.seconds_of("compute", "optimizer", "norm ")
        for name, _ in ON_HOST:
            run = Run(lab, f"{name}-{number}", steps, keys[name])
            parameters = json.loads(call([lab.options.tessera, "plan", "deck.toml", *keys[name], f"run.steps={steps}", "--json"], lab.folder).stdout)["parameters"]
            bounds = {"compute": none.seconds - update,
                      "copies": max(run.bytes_of("upload") / rate(profile, "transfer.up"), run.bytes_of("download") / rate(profile, "transfer.down")),
                      "memory": 30 * parameters / rate(profile, "host.adamw")}
            found[name].append(run.seconds / max(bounds.values()))
            print(f"  {name}: {run.seconds:.3f} s; " + ", ".join(f"{what} {bound:.3f} s" for what, bound in bounds.items()) +
                  f"; step / largest {found[name][-1]:.3f}; without offload {none.seconds:.3f} s", flush=True)
    for name, ratios in found.items():
        print(f"step with {name}: {statistics.median(ratios):.3f} of the largest bound")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default=os.path.join(ROOT, "build", "host", "tessera"))
    parser.add_argument("--disk", help="folder on the disk of offloaded state; else the one of temporary files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("disk", "host"))
    parser.add_argument("--tasks", action="store_true", help="how long the lanes of an update are at work")
    options = parser.parse_args()
    options.tessera = os.path.realpath(options.tessera)
    folder = tempfile.mkdtemp(prefix="offload_speed.", dir=options.disk)
    options.disk = folder
    try:
        lab = Lab(options, os.path.realpath(folder))
        for name, part in (("disk", disk), ("host", host)):
            if options.only in (None, name):
                part(lab, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
