#!/usr/bin/env python3
"""Consolidations, of one process and of ranks, that are killed or whose disk fails before each of their calls that change files: enumerated, so no moment is
left out. The same command then finishes them, to the bytes of one that nobody disturbed, and a folder that is not finished is no model.
    consolidate_points.py LIBRARY [--points 30] [--seed 1]      LIBRARY: fault_points.so; points: how many, spread over all kinds
TESSERA_TEST_FULL=1: every point of every kind"""
import argparse
import os
import random
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

check = runs.Checks()
STORAGE = 7  # exit status
INDEX = "model.safetensors.index.json"
ENDS = ({}, {"FAULT_LOSES": "1"}, {"FAULT_ERROR": "EIO", "FAULT_ONCE": "1"}, {"FAULT_ERROR": "ENOSPC"})
KINDS = [(ranks, rank, end) for ranks, rank in ((1, 0), (3, 0), (3, 1)) for end in ENDS]


def content(folder):
    files = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = file.read()
    return files


class Cases:
    def __init__(self, folder, library):
        self.folder, self.library, self.out = folder, library, folder.run("out")
        folder.train("base", 1, run__steps=2, run__threads=1)
        folder.train("other", 1, run__steps=3, run__threads=1)
        self.export(1, self.folder.run("reference"))
        self.reference = content(self.folder.run("reference"))

    def export(self, ranks, out, run="base", faults=None, expect=(0,), more=()):
        command = [runs.TESSERA, "consolidate", self.folder.latest(run), out, "--max-file-bytes", "20000", *more]
        done = subprocess.run(command if ranks == 1 else [runs.MPIEXEC, "-n", str(ranks)] + command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=runs.HANG_SECONDS, env={**os.environ, **(faults or {})})
        if expect and done.returncode not in expect:
            sys.exit(f"FAIL status {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}")
        return done

    def disturbed(self, kind, at, count=""):
        ranks, rank, end = kind
        shutil.rmtree(self.out, ignore_errors=True)
        faults = {"LD_PRELOAD": self.library, "FAULT_POINTS": self.out, "FAULT_AT": str(at), "FAULT_COUNT": count, **end}
        if ranks > 1:
            faults["FAULT_RANK"] = f"{runs.RANK}={rank}"
        return self.export(ranks, self.out, faults=faults, expect=None)

    def calls(self, kind):
        count = os.path.join(self.folder.path, "count")
        done = self.disturbed((*kind[:2], {"FAULT_LOSES": "1"}), 0, count)
        if done.returncode != 0 or content(self.out) != self.reference:
            sys.exit(f"FAIL a consolidation whose calls are counted ends with {done.returncode}, or writes other bytes\n{done.stdout}{done.stderr}")
        with open(count) as text:
            return int(text.read())

    def check(self, kind, at):
        """What is wrong after the fault, "" where nothing is; and how many files were kept."""
        done = self.disturbed(kind, at)
        if "FAULT_ERROR" in kind[2] and done.returncode != STORAGE or done.returncode == 0:
            return f"status {done.returncode}\n{done.stdout}{done.stderr}", 0
        left = content(self.out) if os.path.isdir(self.out) else {}
        if INDEX in left and any(left.get(name) != data for name, data in self.reference.items() if name.endswith(".safetensors")):
            return "an index leads to weights that are not all there", 0
        again = self.export(kind[0], self.out)
        kept = re.search(r"an earlier start had finished (\d+)", again.stdout)
        return "" if content(self.out) == self.reference else f"other files: {sorted(content(self.out))}", int(kept.group(1)) if kept else 0


def check_by_hand(cases):
    """What is kept, rewritten and refused."""
    count = cases.calls((1, 0, {}))
    cases.disturbed((1, 0, {}), count // 2)
    half = content(cases.out)
    finished = [name for name in half if name.endswith(".safetensors")]
    check("a killed consolidation leaves finished files with their records, and no index", finished and INDEX not in half
          and all(f"{name}.finished" in half for name in finished[:-1]))
    done = cases.export(1, cases.out, "other", expect=(2,))
    check("another checkpoint is refused, by name", "holds an unfinished export of" in done.stderr and content(cases.out) == half, done.stderr)
    done = cases.export(2, cases.out, more=("--dtype", "bf16"), expect=(2,))
    check("other options are refused, on ranks too", done.stderr.count("holds an unfinished export of") == 1 and content(cases.out) == half, done.stderr)
    victim = os.path.join(cases.out, finished[0])
    with open(victim, "r+b") as file:
        file.seek(len(half[finished[0]]) // 2)
        file.write(b"\x55\xaa")
    done = cases.export(2, cases.out)
    check("a finished file that was changed is written again", f"{victim} differs from what an earlier start wrote" in done.stderr
          and content(cases.out) == cases.reference, done.stdout + done.stderr)
    done = cases.export(3, cases.out, "other")
    check("a whole export is written over by a newer checkpoint's", content(cases.out) != cases.reference and set(content(cases.out)) == set(cases.reference)
          and "an earlier start" not in done.stdout, done.stdout)
    done = cases.export(2, cases.folder.run("hdf5"), more=("--format", "hdf5"), expect=(2,))
    check("HDF5 on ranks is refused", done.stderr.count("one file, which one process writes") == 1 and not os.path.exists(cases.folder.run("hdf5")), done.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with runs.Folder() as folder:
        cases = Cases(folder, options.library)
        check_by_hand(cases)
        counts = {kind[:2]: cases.calls(kind) for kind in KINDS}
        points = [(kind, at) for kind in KINDS for at in range(1, counts[kind[:2]] + 1)]
        print(f"{len(points)} points of {len(KINDS)} kinds; calls: {sorted(counts.values())}; {len(cases.reference)} files", flush=True)
        if not os.environ.get("TESSERA_TEST_FULL"):
            first = [(kind, 1) for kind in KINDS if kind[0] == 1]  # which makes the folder
            points = first + random.Random(options.seed).sample(points, options.points - len(first))
        lost = kept = 0
        for number, (kind, at) in enumerate(points):
            fault, files = cases.check(kind, at)
            kept += files
            if fault:
                lost += 1
                print(f"FAIL rank {kind[1]} of {kind[0]}, {kind[2] or 'killed'}, call {at}: {fault[:1500]}", flush=True)
            elif number % 100 == 99:
                print(f"ok   {number + 1} of {len(points)}", flush=True)
        print(f"{lost} of {len(points)} lost; {kept} files were kept")
        check("files were kept", kept > 0)
        sys.exit(0 if check.good and not lost else 1)


if __name__ == "__main__":
    main()
