#!/usr/bin/env python3
"""Steps of models shared over the axes of the mesh, and of models with experts, beside what they are compared with, of GPT-2-124M's size in bf16.

    axes_speed.py [--tessera build/host/tessera] [--rounds 3] [--steps 6] [--only TEXT]

tensor, context, pipeline: tokens a second of two ranks of the axis over those of two data-parallel ranks, the same global batch. Context: two of the layers and
sequences of 8,192 tokens. Pipeline: two stages and six micro-batches, whose bubble leaves 6 / 7.
experts: tokens a second of 8 experts, of which 2 of half the dense model's features take a token, over those of the dense model: as many FLOPs a token are at
work, and the optimizer has three times as many parameters. One rank, all cores.

Rounds are interleaved, each compares within itself, and medians count. To be run on an idle machine. Standard library only."""
import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from simulator_error import LARGE, ROOT, UNCOUNTED, Lab, call, overrides  # noqa: E402

LONG = {"model.layers": 2, "batch.sequence_length": 8192}
# Name, target, and of both sides: ranks, micro-batches of a step over all ranks, keys.
COMPARISONS = [
    ("tensor", 0.85, (2, 4, {"mesh.tp": 2}), (2, 4, {"zero.stage": 0})),
    ("tensor, stage 1", 0.85, (2, 4, {"mesh.tp": 2, "zero.stage": 1}), (2, 4, {"zero.stage": 1})),
    ("context", 0.85, (2, 2, {"mesh.cp": 2, **LONG}), (2, 2, {"zero.stage": 0, **LONG})),
    ("context, in a ring", 0.85, (2, 2, {"mesh.cp": 2, "context.method": "ring", **LONG}), (2, 2, {"zero.stage": 0, **LONG})),
    ("pipeline", 0.90 * 6 / 7, (2, 6, {"mesh.pp": 2}), (2, 6, {"zero.stage": 0})),
    ("experts", 0.80, (1, 4, {"model.experts": 8, "model.experts_per_token": 2, "model.expert_ff_width": LARGE["ff"] // 2}), (1, 4, {})),
]


def seconds_of(lab, steps, ranks, micro_batches, keys):
    """Median seconds of a step."""
    run = os.path.join(lab.folder, "run")
    shutil.rmtree(run, ignore_errors=True)
    call([*lab.launch(ranks), "train", "deck.toml", *overrides(LARGE, 1, micro_batches, keys), f"run.output_dir={run}", f"run.steps={steps}",
          f"run.threads={lab.threads(ranks)}"], lab.folder)
    with open(os.path.join(run, "metrics.jsonl")) as rows:
        seconds = [row["seconds"] for row in map(json.loads, rows) if "seconds" in row and "loss" in row]
    return statistics.median(seconds[UNCOUNTED - 1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default=os.path.join(ROOT, "build", "host", "tessera"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of each run, at least 4")
    parser.add_argument("--only", default="", help="comparisons whose name holds this text")
    options = parser.parse_args()
    options.tessera, options.disk = os.path.realpath(options.tessera), None
    with tempfile.TemporaryDirectory(prefix="axes_speed.") as folder:
        lab = Lab(options, os.path.realpath(folder))
        for name, target, ours, other in COMPARISONS:
            if options.only not in name:
                continue
            ratios = []
            for _ in range(options.rounds):
                mine, theirs = (seconds_of(lab, options.steps, *side) for side in (ours, other))
                ratios.append(theirs / mine)
                print(f"  {name}: {mine:.3f} s a step against {theirs:.3f} s, {100 * ratios[-1]:.1f} %", flush=True)
            print(f"{name}: {100 * statistics.median(ratios):.1f} % (target {100 * target:.0f} %)", flush=True)


if __name__ == "__main__":
    main()
