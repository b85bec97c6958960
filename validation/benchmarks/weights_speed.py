#!/usr/bin/env python3
"""tessera consolidate and import against the disk: each reads and writes the bytes of the weights, and so does a plain loop (cold read, then write and sync, of
pieces of 4 MiB, past the page cache) beside it in each round. Shares of what the loop takes, and of the time the share in which the disk had something to do, which no
neighbour of the disk changes; medians of interleaved rounds. No test.
    weights_speed.py TESSERA [--layers 4] [--width 1024] [--rounds 5] [--folder DIR]"""
import argparse
import mmap
import os
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time

PIECE = 4 << 20


def forget(folder):
    """Takes the files of a folder out of the page cache."""
    for parent, _, names in os.walk(folder):
        for name in names:
            file = os.open(os.path.join(parent, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def disk_seconds(path, size, buffer):
    """(to read, to write) so many bytes."""
    def timed(flags, move):
        file = os.open(path, flags | os.O_DIRECT | os.O_CREAT, 0o666)
        begin = time.perf_counter()
        for at in range(0, size, PIECE):
            move(file, [buffer], at)
        os.fsync(file)
        seconds = time.perf_counter() - begin
        os.close(file)
        return seconds
    write = timed(os.O_WRONLY | os.O_TRUNC, os.pwritev)
    return timed(os.O_RDONLY, os.preadv), write


def busy_seconds(folder):
    """In which the folder's disk has had requests, since the machine's start; 0 where the system does not say."""
    device = os.stat(folder).st_dev
    with open("/proc/diskstats") as rows:
        for row in map(str.split, rows):
            if (int(row[0]), int(row[1])) == (os.major(device), os.minor(device)):
                return int(row[12]) / 1e3
    return 0.0


def program_seconds(options, *arguments):
    """(in all, in which the disk was busy)"""
    begin, busy = time.perf_counter(), busy_seconds(options.folder)
    subprocess.run([options.tessera, *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - begin, busy_seconds(options.folder) - busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    options.tessera = os.path.abspath(options.tessera)
    W = options.width
    with tempfile.TemporaryDirectory(prefix="tessera-weights-", dir=os.path.abspath(options.folder)) as folder:
        draw, data, deck, run = random.Random(1), *(os.path.join(folder, name) for name in ("tokens.bin", "weights.toml", "run"))
        with open(data, "wb") as out:
            out.write(struct.pack("<4096H", *(draw.randrange(250) for _ in range(4096))))
        with open(deck, "w") as out:
            out.write(f'[run]\nsteps = 1\ndevice = "host"\n[model]\nlayers = {options.layers}\nwidth = {W}\nheads = {W // 64}\nff_width = {W * 11 // 4}\nvocab = 8192\n'
                      f'[batch]\nglobal = 1\nmicro = 1\nsequence_length = 64\n[data]\ntrain = "{data}"\n[optimizer]\nlearning_rate = 1e-4\n')
        subprocess.run([options.tessera, "train", deck, f"run.output_dir={run}"], check=True, stdin=subprocess.DEVNULL, capture_output=True)
        out, imported = os.path.join(folder, "out"), os.path.join(folder, "imported")
        buffer = mmap.mmap(-1, PIECE)
        buffer.write(random.Random(2).randbytes(PIECE))
        shares, busy = {"consolidate": [], "import": []}, {"consolidate": [], "import": []}
        for _ in range(options.rounds):
            shutil.rmtree(out, ignore_errors=True)
            shutil.rmtree(imported, ignore_errors=True)
            forget(run)
            consolidated, consolidate_busy = program_seconds(options, "consolidate", run + "/checkpoints/latest", out)
            size = os.path.getsize(out + "/model.safetensors") // PIECE * PIECE
            disk = sum(disk_seconds(os.path.join(folder, "raw"), size, buffer))
            forget(out)
            brought, import_busy = program_seconds(options, "import", out, imported, "batch.sequence_length=64")
            again = sum(disk_seconds(os.path.join(folder, "raw"), size, buffer))
            shares["consolidate"].append(disk / consolidated)
            shares["import"].append(again / brought)
            busy["consolidate"].append(consolidate_busy / consolidated)
            busy["import"].append(import_busy / brought)
        print(f"{size / 2**20:.0f} MiB of weights, read and written; shares of the disk, start of the program included, {options.rounds} rounds")
        for what, values in shares.items():
            print(f"  {what:<12} {100 * statistics.median(values):4.0f} % ({100 * min(values):.0f} to {100 * max(values):.0f}), the disk is busy "
                  f"{100 * statistics.median(busy[what]):.0f} % of the time ({100 * min(busy[what]):.0f} to {100 * max(busy[what]):.0f})")


if __name__ == "__main__":
    main()
