#!/usr/bin/env python3
"""Weights of fixtures go through a checkpoint and `tessera consolidate`: transformers must load the export and give the logits that PyTorch gave, and h5py must read the
same weights from checkpoint.h5. Of the fixtures a third, others at each commit; with TESSERA_TEST_FULL=1 all.

    FIXTURE_CHECKPOINT=... TESSERA=... check_exports.py [NAME ...]

Exit status: 0 all agree, 1 not, 77 when torch, transformers or h5py is not installed.
"""

import glob
import os
import subprocess
import sys
import tempfile

import check_checkpoint
import check_export
from exports import fail

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(FOLDER, "..", "program", "resume"))
import drawn  # noqa: E402


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        fail(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")


def check(fixture, work):
    checkpoints, out = os.path.join(work, "checkpoints"), os.path.join(work, "out")
    latest = os.path.join(checkpoints, "latest")
    run(os.environ["FIXTURE_CHECKPOINT"], fixture, checkpoints)
    run(os.environ["TESSERA"], "consolidate", latest, out)
    return check_checkpoint.main([latest, out]) == 0 and check_export.main([out, fixture]) == 0


def main(names):
    there = {os.path.basename(path)[: -len(".h5")]: path for path in sorted(glob.glob(os.path.join(FOLDER, "fixtures", "*.h5")))}
    if unknown := sorted(set(names) - set(there)):
        fail(f"{', '.join(unknown)}: no such fixture; there are {', '.join(there)}")
    wrong = []
    for name in names or drawn.third(there):
        with tempfile.TemporaryDirectory() as work:
            if not check(there[name], work):
                wrong.append(name)
    if wrong or not there:
        fail(f"wrong: {', '.join(wrong)}" if there else "there is no fixture")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
