#!/usr/bin/env python3
"""A run on the GPU follows the host's loss, step for step. Both round differently, and training magnifies that, so the curves are compared by a
bound that grows with the steps: |device / host - 1| <= START + GROWTH x step, and the run must learn.
Usage: loss_curve.py [--steps 200] [--dtype fp32|bf16] [--attention native|cudnn]"""
import argparse
import os
import struct
import sys

import runs

BOUNDS = {"fp32": (1e-5, 5e-6), "bf16": (1e-2, 2e-4)}  # at the first step, and more at each later one


def learnable(folder):
    """Text that a small model learns within a few steps: a short pattern, disturbed now and then."""
    path = os.path.join(folder.path, "pattern.bin")
    tokens = [i * i % 13 if i % 17 else i % 211 for i in range(20000)]
    with open(path, "wb") as out:
        out.write(struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def curve(folder, device, options):
    folder.train(device, 1, data__train=learnable(folder), run__device=device, run__steps=options.steps, precision__compute=options.dtype, topology__share_gpu=True,
                 kernels__gemm_search=False, kernels__attention=options.attention, batch__global=4, batch__micro=2, batch__sequence_length=16)
    losses = folder.losses(device)
    if len(losses) != options.steps:
        sys.exit(f"FAIL {device} has {len(losses)} steps of {options.steps}")
    return [losses[step][0] for step in sorted(losses)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", choices=BOUNDS, default="fp32")
    parser.add_argument("--attention", choices=("native", "cudnn"), default="native")
    options = parser.parse_args()
    with runs.Folder() as folder:
        if not runs.has_gpu(folder):
            print("skipped: no GPU")
            return 77
        if options.attention == "cudnn" and not runs.has_cudnn(folder):
            print("skipped: no cuDNN")
            return 77
        host, device = (curve(folder, device, options) for device in ("host", "cuda"))
    start, growth = BOUNDS[options.dtype]
    gaps = [abs(d / h - 1) for h, d in zip(host, device)]
    worst = max(range(len(gaps)), key=lambda i: gaps[i] / (start + growth * i))
    share = gaps[worst] / (start + growth * worst)
    tenth = max(1, options.steps // 10)
    first, last = sum(host[:tenth]) / tenth, sum(host[-tenth:]) / tenth
    print(f"{options.steps} steps in {options.dtype}: loss {first:.4f} to {last:.4f}; largest gap {max(gaps):.2e}, {share:.2f} of the bound at step {worst + 1}")
    good = share <= 1 and last < 0.8 * first
    print("the device follows the host" if good else "FAIL the device does not follow the host, or nothing was learned")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
