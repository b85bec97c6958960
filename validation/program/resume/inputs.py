#!/usr/bin/env python3
"""The decks of inputs/: each is valid for its launch, fits 80 GB GPUs with room beside the plan, and trains, scaled down, on two ranks or as many as its axes need.
    inputs.py [--gpus]"""
import json
import os
import sys

import runs

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "inputs")
# Ranks that a deck is made for. Those for GPUs must leave each of them room for the libraries' code and buffers.
RANKS = {"quickstart.toml": 2, "gpt2_124m.toml": 1, "train_7b.toml": 8, "train_13b.toml": 32, "train_30b.toml": 32, "train_70b.toml": 64, "train_70b_tp8.toml": 64,
         "finetune_70b_offload.toml": 8, "infinity_175b.toml": 8, "train_175b_3d.toml": 1024, "mixtral_tiny.toml": 2, "mixtral_8x22b.toml": 128,
         "long_context_8b.toml": 64, "finetune_8b.toml": 4, "gemma3_4b.toml": 4, "olmo3_7b.toml": 16, "gpt_oss_20b.toml": 16}
GPU_BYTES, ROOM = 80 * 10**9, 6 * 2**30
SMALL = ["model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=2", "model.ff_width=96", "model.vocab=211", "batch.global=4", "batch.micro=1",
         "batch.sequence_length=16", "run.steps=2", "run.threads=1", "run.device=host", "learning_rate.warmup_steps=1", "evaluate.every=2",
         "evaluate.batches=2"]
SMALL_EXPERTS = ["model.expert_ff_width=40"]
check = runs.Checks()


def main():
    decks = sorted(name for name in os.listdir(INPUTS) if name.endswith(".toml"))
    check("every deck has its number of ranks here", decks == sorted(RANKS), f"{decks}")
    with runs.Folder() as folder:
        gpus = "--gpus" in sys.argv  # a build that can plan for them
        for name in decks:
            deck, ranks = os.path.join(INPUTS, name), str(RANKS[name])
            plan = ["plan", deck, "--ranks", ranks, "--ranks-per-node", "8", "--json"]
            done = runs.tessera(*plan, *(["run.device=cuda"] if gpus else []))
            check(f"{name} is planned on {ranks} ranks", done.returncode == 0, done.stderr)
            if gpus and done.returncode == 0:
                device = json.loads(done.stdout)["tiers"]["device"]["bytes"]
                check(f"{name}: {device / 1e9:.1f} GB of a GPU of 80 GB", device + ROOM <= GPU_BYTES)
            axes = [axis for axis in ("pp", "cp", "ep", "tp") if f"\n{axis} = " in open(deck).read()]
            small = 2 ** max(1, len(axes))
            train = ["train", deck, *SMALL, f"data.train={folder.data}", f"data.validation={folder.data}",
                     f"run.output_dir={folder.run(name)}"]
            train += [f"mesh.{axis}=2" for axis in axes]
            train += ["model.layers=4", "pipeline.virtual_stages=2"] if "\nvirtual_stages = " in open(deck).read() else []
            train += ["model.pattern=LG"] if "\npattern = " in open(deck).read() else []
            train += SMALL_EXPERTS if "\nexperts = " in open(deck).read() else []
            train += [f"zero.offload_optimizer.nvme_path={folder.path}"] if "nvme_path" in open(deck).read() else []
            # The model and the conversations of a fine-tuning are its user's.
            train += ['run.init=""', "data.packing=concatenate", "data.document_mask=false"] if "\ninit = " in open(deck).read() else []
            done = runs.tessera(*train, ranks=small)
            check(f"{name}, scaled down, trains on {small} ranks", done.returncode == 0, done.stderr)
            if "\ninit = " in open(deck).read():
                done = runs.tessera(*train, "lora.rank=4", "lora.alpha=8", "run.overwrite=true", ranks=small)
                check(f"{name}, scaled down, trains adapters on {small} ranks", done.returncode == 0, done.stderr)
        # As its head says, with its own experts.
        done = runs.tessera("train", os.path.join(INPUTS, "mixtral_tiny.toml"), *SMALL, *SMALL_EXPERTS, "mesh.ep=2", "zero.stage=2",
                            f"data.train={folder.data}", f"data.validation={folder.data}", f"run.output_dir={folder.run('ep')}", ranks=4)
        check("mixtral_tiny.toml trains on 4 ranks of which two share the experts", done.returncode == 0, done.stderr)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
