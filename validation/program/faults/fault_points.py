#!/usr/bin/env python3
"""Saves that end, or whose disk fails, before each of their calls that change files: enumerated, so no moment is left out. The program is killed there, with
and without what no fsync has made sure of being lost, or the call fails. Afterwards the same command must go on from a whole checkpoint, not older than the
one that stood before, to the bits of a run that nobody disturbed.
    fault_points.py LIBRARY [--points 20] [--seed N]      LIBRARY: fault_points.so; points: how many, spread over all kinds; N is TESSERA_TEST_DRAW
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

KEYS = {"run__reproducible": True, "run__threads": 1, "batch__global": 12, "learning_rate__schedule": "constant", "checkpoint__every": 1, "checkpoint__keep": 1}
FIRST, LAST = 2, 4
STORAGE = 7  # exit status
KILL, LOSE, EIO = {}, {"FAULT_LOSES": "1"}, {"FAULT_ERROR": "EIO", "FAULT_ONCE": "1"}
DISK = "checkpoints-disk"  # of the case's folder: calls on it count as those on the checkpoints do
FROZEN = '["layers.0.*"]'  # the second save of a start links what these have
KINDS = [  # (ranks, the one that it happens to, keys, what happens)
    *((ranks, rank, {"checkpoint__async": beside}, end) for ranks, rank in ((1, 0), (2, 0), (2, 1)) for beside in (False, True) for end in (KILL, LOSE)),
    *((ranks, rank, {"checkpoint__async": beside}, {"FAULT_ERROR": error, **once}) for ranks, rank in ((1, 0), (2, 1)) for beside in (False, True)
      for error, once in (("EIO", {"FAULT_ONCE": "1"}), ("ENOSPC", {}), ("EROFS", {}))),
    *((1, 0, {"checkpoint__async": beside, "checkpoint__verify_resume": True}, end) for beside in (False, True) for end in (KILL, LOSE, {"FAULT_ERROR": "EIO"})),
    *((2, rank, {"checkpoint__files": 1}, end) for rank in (0, 1) for end in (KILL, LOSE, EIO, {"FAULT_ERROR": "ENOSPC"})),
    *((1, 0, {"checkpoint__staging": DISK}, end) for end in (KILL, LOSE, EIO, {"FAULT_ERROR": "ENOSPC"}, {"FAULT_ERROR": "EROFS"})),
    *((2, 1, {"checkpoint__staging": DISK, "checkpoint__files": 1}, end) for end in (KILL, LOSE, EIO)),
    *((1, 0, {"model__freeze": FROZEN, "checkpoint__async": beside}, end) for beside in (False, True) for end in (KILL, LOSE, EIO, {"FAULT_ERROR": "ENOSPC"})),
    *((2, rank, {"model__freeze": FROZEN, "checkpoint__files": 1}, end) for rank in (0, 1) for end in (KILL, LOSE, EIO)),
    *((1, 0, {"checkpoint__weights_every": 1, "checkpoint__async": beside}, end) for beside in (False, True) for end in (KILL, LOSE, EIO)),
]


class Cases:
    def __init__(self, folder, library):
        self.folder, self.library = folder, library
        self.references = {}
        for base, model in (("base", {}), ("base-frozen", {"model__freeze": FROZEN})):
            folder.train(base, 1, **KEYS, **model, run__steps=FIRST)
            folder.train(f"{base}-reference", 1, **KEYS, **model, run__steps=LAST)
            self.references[base] = (folder.losses(f"{base}-reference"), folder.hashes(f"{base}-reference"))

    def keys(self, kind):
        return {key: os.path.join(self.folder.run("case"), DISK) if value is DISK else value for key, value in kind[2].items()}

    @staticmethod
    def base(kind):
        return "base-frozen" if "model__freeze" in kind[2] else "base"

    def below(self, kind):
        return self.folder.run("case") + ("/weights" if "checkpoint__weights_every" in kind[2] else "/checkpoints")

    def run(self, kind, at, count=""):
        """Status and output of a run that goes on from the base with a fault before its call `at`."""
        ranks, rank, keys, what = kind[0], kind[1], self.keys(kind), kind[3]
        shutil.rmtree(self.folder.run("case"), ignore_errors=True)
        shutil.copytree(self.folder.run(self.base(kind)), self.folder.run("case"), symlinks=True)
        os.mkdir(os.path.join(self.folder.run("case"), DISK))
        faults = {"LD_PRELOAD": self.library, "FAULT_POINTS": self.below(kind), "FAULT_AT": str(at), "FAULT_COUNT": count, **what}
        if ranks > 1:
            faults["FAULT_RANK"] = f"{runs.RANK}={rank}"
        done = subprocess.run(self.folder.command("case", ranks, **KEYS, **keys, run__steps=LAST), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=runs.HANG_SECONDS, env={**os.environ, **faults})
        return done.returncode, done.stdout + done.stderr

    def calls(self, kind):
        """How many there are in a run that nothing happens to."""
        count = os.path.join(self.folder.path, "count")
        status, output = self.run((*kind[:3], LOSE), 0, count)
        if status != 0:
            sys.exit(f"FAIL a run whose calls are counted ends with {status}\n{output}")
        with open(count) as text:
            return int(text.read())

    def check(self, kind, at):
        """What is wrong after the fault; empty where nothing is."""
        count = os.path.join(self.folder.path, "count")
        status, output = self.run(kind, at, count)
        killed = "FAULT_ERROR" not in kind[3]
        if killed and status == 0:
            with open(count) as text:  # ranks wait for each other's files, and look again: a run may have a call less than the one that was counted
                made = int(text.read())
            return "the run was not ended" if made >= at else ""
        if not killed and status not in (0, STORAGE):
            return f"status {status}\n{output}"
        again = subprocess.run(self.folder.command("case", kind[0], **KEYS, **self.keys(kind), run__steps=LAST), stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=runs.HANG_SECONDS)
        text = again.stdout + again.stderr
        if again.returncode != 0:
            return f"the next start ends with {again.returncode}\n{text}"
        resumed = re.search(r"resumed from \S+ at step (\d+)", text)
        if not resumed or int(resumed.group(1)) < FIRST:
            return f"the next start did not go on from a checkpoint\n{text}"
        losses, hashes = self.references[self.base(kind)]
        if self.folder.losses("case") != losses or self.folder.hashes("case") != hashes:
            return "other bits"
        left = [name for name in os.listdir(self.below(kind)) if "partial" in name]
        if "checkpoint__weights_every" in kind[2]:
            weights = runs.state_digests(self.below(kind) + "/latest")
            if weights != {key: value for key, value in hashes.items() if key[0] == "master"}:
                return "other weights"
        disk = os.path.join(self.folder.run("case"), DISK)
        left += os.listdir(disk) if os.path.exists(disk) else []
        return f"left behind: {left}" if left else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TESSERA_TEST_DRAW", "1")))
    options = parser.parse_args()
    with runs.Folder() as folder:
        cases = Cases(folder, options.library)
        counts = {}
        points = []
        for kind in KINDS:
            key = (kind[0], kind[1], str(kind[2]))
            if key not in counts:
                counts[key] = cases.calls(kind)
            points += [(kind, at) for at in range(1, counts[key] + 1)]
        print(f"{len(points)} points of {len(KINDS)} kinds; calls of a run: {sorted(counts.values())}", flush=True)
        if min(counts.values()) < 20:
            sys.exit("FAIL so few calls cannot be two saves: the library does not see them")
        if not os.environ.get("TESSERA_TEST_FULL"):
            points = random.Random(options.seed).sample(points, options.points)
        lost = 0
        for number, (kind, at) in enumerate(points):
            fault = cases.check(kind, at)
            if fault:
                lost += 1
                print(f"FAIL rank {kind[1]} of {kind[0]}, {kind[2]}, {kind[3] or 'killed'}, call {at}: {fault[:200]}\n{fault[-1500:] if len(fault) > 200 else ''}", flush=True)
            elif number % 100 == 99:
                print(f"ok   {number + 1} of {len(points)}", flush=True)
        print(f"{lost} of {len(points)} lost")
        sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
