#!/usr/bin/env python3
"""A rank on a GPU is killed in the middle of a run and the launcher does not see it: the others end and name the rank and the task
that waits for it; the same command then goes on from the last checkpoint. Too few GPUs are refused unless ranks may share. Emulated GPUs or real
ones."""
import json
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

KEYS = {"run__device": "cuda", "topology__share_gpu": True, "batch__global": 6, "batch__sequence_length": 8, "zero__stage": 3,
        "zero__param_persistence_threshold": 0, "checkpoint__every": 2, **runs.ENDLESS}
LOST = 76  # exit status
check = runs.Checks()


def lose_a_rank(folder):
    launch = folder.command("lost", 3, **KEYS)
    at = launch.index(runs.TESSERA)
    # The emulator's NCCL sends by MPI, and UCX aborts who reads a dead process's memory; NCCL does not. world_faults.py looks at MPI itself.
    os.environ["UCX_TLS"] = "^cma"
    # A shell keeps the dead rank's place, so the launcher has nothing to notice.
    run = runs.Running(launch[:at] + ["sh", "-c", f'"$0" "$@"; exec sleep {runs.HANG_SECONDS}'] + launch[at:], folder.run("lost"), os.path.join(folder.path, "lost.log"))
    del os.environ["UCX_TLS"]
    run.wait_for_step(3)
    run.signal_ranks(signal.SIGKILL, 1)
    status, output = run.wait(), run.output()
    check(f"the others end with {status}", status == LOST, output)
    check("the lost rank is named", re.search(r"the process of rank \d on \S+ has ended during", output), output)
    check("its task is named", re.search(r"(lane \w+ (?:is at|has reached)|in task) `(gather|reduce|all-reduce)", output), output)
    folder.train("lost", 2, **{**KEYS, "run__steps": run.steps_done() + 3})


def too_few(folder):
    done = subprocess.run(folder.command("few", 3, **{**KEYS, "topology__share_gpu": False}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "0", "TESSERA_EMULATED_GPUS": "1"}, timeout=runs.HANG_SECONDS)
    check("three ranks on one GPU are refused", done.returncode == 2 and "3 ranks on" in done.stderr and "topology.share_gpu = true" in done.stderr,
          done.stderr)
    done = subprocess.run(folder.command("few", 3, **{**KEYS, "run__steps": 2}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "0", "TESSERA_EMULATED_GPUS": "1"}, timeout=runs.HANG_SECONDS)
    check("and train where they may share it", done.returncode == 0 and "shared by 3 ranks" in done.stderr + done.stdout, done.stderr)
    if "emulated:" not in done.stderr + done.stdout:
        return
    done = subprocess.run(folder.command("instances", 2, **{**KEYS, "topology__share_gpu": False, "run__steps": 2}), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, env={**os.environ, "TESSERA_EMULATED_GPUS": "2", "TESSERA_EMULATED_INSTANCES": "2"},
                          timeout=runs.HANG_SECONDS)
    check("two instances of a GPU are two GPUs", done.returncode == 0 and "shared by 2 ranks" not in done.stderr + done.stdout, done.stderr)


def searches_products(folder):
    """The choices of matrix products are in the cache folder, and a second start adds none to them."""
    file = os.path.join(os.environ["XDG_CACHE_HOME"], "tessera", "kernels.json")
    check("choices of matrix products are kept", os.path.exists(file) and all(json.load(open(file)).values()))
    before = os.stat(file).st_mtime_ns
    folder.train("again", 1, own_process=True, **{**KEYS, "run__steps": 2, "run__reproducible": True})
    check("reproducible runs search none", os.stat(file).st_mtime_ns == before)
    folder.train("once", 1, own_process=True, **{**KEYS, "run__steps": 2, "batch__sequence_length": 9})
    searched = os.stat(file).st_mtime_ns
    check("new shapes are searched", searched != before)
    folder.train("twice", 1, own_process=True, **{**KEYS, "run__steps": 2, "batch__sequence_length": 9})
    check("known shapes are not", os.stat(file).st_mtime_ns == searched)


def main():
    with runs.Folder() as folder:
        if not runs.has_gpu(folder):
            print("skipped: no GPU")
            return 77
        lose_a_rank(folder)
        too_few(folder)
        searches_products(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
