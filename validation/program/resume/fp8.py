#!/usr/bin/env python3
"""Products in fp8 (precision.fp8): in reproducible mode the bits of one rank over numbers of ranks, stages of ZeRO and of a pipeline, offload, recompute and
resumes; others than products in bf16, and near them; with mesh.tp and mesh.cp near them too. Memory is what was planned. Adapters and frozen tensors beside it. On a
GPU, which the emulator is as a Hopper, the bits of one rank over ranks and stages, and what the host trains nearly; an older one is refused.
    fp8.py [--device host|cuda]"""
import argparse
import json
import os
import re

import runs
from drawn import DRAW, FULL

os.environ.setdefault("TESSERA_EMULATED_CAPABILITY", "9.0")
check = runs.Checks()
RECIPES = {"tensorwise": {}, "tensorwise_delayed": {"precision__fp8_history": 3}, "rowwise": {}, "blockwise": {}}
STATE = {"zero__offload_optimizer__device": "host"}
LAYOUTS = [(2, {"zero__stage": 1}), (3, {"zero__stage": 2, "activation__recompute": "full"}), (2, {"zero__stage": 3, "run__lanes": "threads"}),
           (1, {"zero__stage": 3, **STATE, "zero__offload_param__device": "host"}), (2, {"zero__stage": 0, "mesh__pp": 2}),
           (2, {"zero__stage": 3, "zero__offload_optimizer__device": "nvme"}), (4, {"zero__stage": 3, "zero__hpz_partition_size": 2})]
# What also decides a rank's numbers: near products in bf16.
AXES = [(2, {"mesh__tp": 2}), (2, {"mesh__cp": 2})]
# Beside it, and then the same over twice the ranks.
BESIDE = {"frozen": {"model__freeze": ["embedding.*", "layers.0.*"]}, "adapters": {"lora__rank": 2}, "blocks": {"zero__stage": 3, "zero__quantized_weights": True}, "skipped": {"precision__fp8_skip": ["layers.0", "*.w_down"]}}


def as_planned(name, done):
    memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
    check(f"{name}: memory is what was planned", bool(memory) and all(used == planned for used, planned in memory), str(memory))


def apart(a, b):
    """The largest relative difference of losses, of the steps of the first."""
    return max(abs(a[step][0] / b[step][0] - 1) for step in a)


def evaluated(folder, name):
    return [row["val_loss"] for row in folder.metrics(name) if "val_loss" in row]


def histories(folder, checkpoint):
    return {name: value for name, value in json.loads(runs.tessera("inspect", checkpoint, "--json").stdout)["run"].items() if name.startswith("fp8_amax.")}


def copies(folder, common):
    """Codes of weights, plain and transposed, and scales of whole matrices: of what a rank keeps whole."""
    for recipe, own in RECIPES.items():
        of_stage = [sum(tier["categories"].get("packed", 0) for tier in folder.plan(2, zero__stage=stage, zero__param_persistence_threshold=0, precision__fp8=recipe, **own, **common)["tiers"].values())
                    for stage in (1, 3)]
        check(f"{recipe}: copies of weights at stage 1, and none at stage 3", of_stage[0] > 0 and of_stage[1] == 0, str(of_stage))


def gathers(folder, common):
    """With a scale a matrix stage 3 moves half the bytes of layers, forward and backward, and as many of all else."""
    asked = {"zero__stage": 3, "zero__param_persistence_threshold": 0, **common}
    moved = {recipe: folder.plan(2, precision__fp8=recipe, **RECIPES.get(recipe, {}), **asked)["step"]["bytes_moved"] for recipe in ("none", *RECIPES)}
    check("rows and blocks are gathered in bf16", moved["rowwise"] == moved["blockwise"] == moved["none"], str(moved))
    check("matrices are gathered as codes", all(moved[recipe] < 0.95 * moved["none"] for recipe in ("tensorwise", "tensorwise_delayed")), str(moved))


def layouts(folder, recipe, number, common):
    exact, after = {**common, "precision__fp8": recipe, **RECIPES[recipe]}, common["run__steps"] // 2
    alone = f"{recipe}-alone"
    as_planned(alone, folder.train(alone, 1, zero__stage=0, checkpoint__every=after, checkpoint__keep=0, **exact))
    losses, hashes = folder.losses(alone), folder.hashes(alone)
    check(f"{recipe}: others than in bf16, and near them", 0 < apart(losses, folder.losses("plain")) < 0.02, f"{losses} {folder.losses('plain')}")
    known = histories(folder, folder.latest(alone))
    check(f"{recipe}: a checkpoint has its histories", (len(known) > 0 and all(len(history) == 3 for history in known.values())) == (recipe == "tensorwise_delayed"), str(known))
    check(f"{recipe}: an evaluation is in fp8 as well", evaluated(folder, alone) != evaluated(folder, "plain"))
    for at, (ranks, keys) in enumerate(LAYOUTS):
        if not FULL and (at + number + DRAW) % 3:
            continue
        name = f"{recipe}-layout{at}"
        as_planned(name, folder.train(name, ranks, **{**exact, **keys}))
        check(f"{recipe} on {ranks} ranks with {keys}: the bits of one rank",
              folder.losses(name) == losses and folder.hashes(name) == hashes and evaluated(folder, name) == evaluated(folder, alone) and histories(folder, folder.latest(name)) == known,
              f"{folder.losses(name)} instead of {losses}")
    ranks, keys = LAYOUTS[(number + DRAW) % len(LAYOUTS)]
    name, start = f"{recipe}-resumed", folder.run(alone) + f"/checkpoints/step-{after:08d}"
    folder.train(name, ranks, run__resume=start, **{**exact, **keys})
    check(f"{recipe} resumed on {ranks} ranks with {keys}: the bits of one rank",
          folder.losses(name) == {step: loss for step, loss in losses.items() if step > after} and folder.hashes(name) == hashes and histories(folder, folder.latest(name)) == known)


def axes(folder, recipe, number, common):
    ranks, keys = AXES[(number + DRAW) % len(AXES)]
    name = f"{recipe}-axes"
    as_planned(name, folder.train(name, ranks, precision__fp8=recipe, **RECIPES[recipe], **common, **keys))
    losses = folder.losses(name)
    check(f"{recipe} with {keys}: near products in bf16", apart(losses, folder.losses("plain")) < 0.02, f"{losses}")


def other_recipes(folder, common):
    """Histories do not outlive their recipe, and a run that comes from another begins without."""
    half = common["run__steps"] // 2
    start = {recipe: folder.run(f"{recipe}-alone") + f"/checkpoints/step-{half:08d}" for recipe in RECIPES}
    for recipe, of in (("tensorwise", "tensorwise_delayed"), ("tensorwise_delayed", "tensorwise")):
        said = folder.train(f"{recipe}-after", 2, run__resume=start[of], precision__fp8=recipe, **RECIPES[recipe], **common).stderr
        known = histories(folder, folder.latest(f"{recipe}-after"))
        check(f"{recipe} goes on from {of}", bool(known) == (recipe == "tensorwise_delayed") and len(folder.losses(f"{recipe}-after")) == half, str(known))
        words = "which start from their initial values: fp8_amax." if recipe == "tensorwise_delayed" else "they are dropped: fp8_amax."
        check("and says what becomes of the histories", said.count(words) == 1, said)
    watched = "tensorwise_delayed-watched"
    folder.train(watched, 1, **{**common, "precision__fp8": "tensorwise_delayed", **RECIPES["tensorwise_delayed"], "evaluate__every": 1})
    check("evaluations leave no trace in histories", histories(folder, folder.latest(watched)) == histories(folder, folder.latest("tensorwise_delayed-alone")))
    shown = runs.tessera("inspect", folder.latest("tensorwise_delayed-alone")).stdout
    check("inspect shows the histories in words", re.search(r"fp8_amax.layers.0.attention.wq.input: 3 steps, newest \S+, largest \S+", shown) is not None, shown)


def beside(folder, recipe, what, keys, common):
    asked = {**common, "precision__fp8": recipe, **RECIPES[recipe], **keys}
    folder.train(what, 1, **asked)
    as_planned(f"{what} on two ranks", folder.train(f"{what}-twice", 2, **{"zero__stage": 3, **asked}))
    check(f"{what} in {recipe}: the same bits on two ranks",
          folder.losses(what) == folder.losses(f"{what}-twice") and folder.hashes(what) == folder.hashes(f"{what}-twice"))


def on_gpus(folder):
    """As the emulator of a Hopper, or on one; by cuBLASLt, in two recipes."""
    common = {**runs.ON_GPUS, "run__steps": 3, "run__log_every": 1, "run__reproducible": True, "precision__compute": "bf16", "batch__sequence_length": 16, "model__ff_width": 64}
    for number, recipe in enumerate(("tensorwise", "rowwise", "tensorwise_delayed")):
        if not FULL and (number + DRAW) % 3:
            continue
        os.environ["TESSERA_EMULATED_CAPABILITY"] = "9.0" if recipe == "rowwise" else "8.9"  # the first that has such products
        exact = {**common, "precision__fp8": recipe, **RECIPES[recipe]}
        folder.train(recipe, 1, **exact)
        folder.train(f"{recipe}-host", 1, **{**exact, "run__device": "host"})
        losses, hashes = folder.losses(recipe), folder.hashes(recipe)
        check(f"{recipe}: near the host's", apart(losses, folder.losses(f"{recipe}-host")) < 0.02, f"{losses} {folder.losses(recipe + '-host')}")
        for stage, keys in ((1, {"kernels__cuda_graph": "on"}), (3, {})):
            name = f"{recipe}-stage{stage}"
            as_planned(name, folder.train(name, 2, zero__stage=stage, **exact, **keys))
            check(f"{recipe} at stage {stage} on 2 ranks: the bits of one", folder.losses(name) == losses and folder.hashes(name) == hashes, f"{folder.losses(name)} instead of {losses}")


def refusals(folder):
    """Of a GPU without such products, which the emulator is unless it is told; and of what no GPU has."""
    keys = {**runs.ON_GPUS, "precision__compute": "bf16", "batch__sequence_length": 16, "model__ff_width": 64, "run__steps": 3}
    for recipe, asked, status, words in (("blockwise", {}, 2, "Set \"tensorwise\" or \"rowwise\""), ("tensorwise", {"batch__sequence_length": 12}, 2, "need multiples of 16")):
        done = folder.train(f"refused-{recipe}", 1, expect=status, precision__fp8=recipe, **{**keys, **asked})
        check(f"{recipe} with {asked} on a GPU is refused", words in done.stderr, done.stderr)
    os.environ["TESSERA_EMULATED_CAPABILITY"] = "8.9"
    done = runs.tessera(*folder.arguments("ada", precision__fp8="rowwise", **keys), own_process=True)
    check("rows need a Hopper", '"tensorwise"' in done.stderr or done.returncode == 0, done.stderr)
    os.environ["TESSERA_EMULATED_CAPABILITY"] = "8.6"
    done = runs.tessera(*folder.arguments("older", precision__fp8="tensorwise", **keys), own_process=True)
    said = "which need compute capability 8.9" in done.stderr and 'run.device = "host"' in done.stderr
    check("a GPU without products in fp8 is refused", said or done.returncode == 0, done.stderr)  # 0: a GPU that is none of the emulator's


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    with runs.Folder() as folder:
        if device == "cuda":
            on_gpus(folder)
            refusals(folder)
            return 0 if check.good else 1
        steps = 6
        common = {"run__steps": steps, "run__log_every": 1, "run__reproducible": True, "precision__compute": "bf16", "model__layers": 2, "model__tied": False,
                  "model__kv_heads": 4, "batch__global": 11, "evaluate__every": steps, "evaluate__batches": 4, "data__validation": folder.data}
        folder.train("plain", 1, **common)
        copies(folder, common)
        gathers(folder, common)
        for number, recipe in enumerate(RECIPES):
            layouts(folder, recipe, number, common)
            axes(folder, recipe, number, common)
        other_recipes(folder, common)
        for number, (what, keys) in enumerate(BESIDE.items()):
            if FULL or (number + DRAW) % 2 == 0:
                beside(folder, list(RECIPES)[(number + DRAW) % 4], what, keys, common)
    return 0 if check.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
