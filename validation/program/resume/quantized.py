#!/usr/bin/env python3
"""Blocks of codes on the wire (ZeRO++). Weights (zero.quantized_weights): in reproducible mode the bits of one rank over numbers of ranks, groups of compute copies, offload,
recompute, stages of a pipeline and resumes; others than without, and near them. Gradients (zero.quantized_gradients): near plain sums at stages 2 and 3, over groups too,
and the same from run to run; nearer with their errors kept (zero.error_feedback). Memory is what was planned.
    quantized.py [--dtype fp32|bf16|fp16] [--device host|cuda]"""
import argparse
import array
import math
import re

import runs
from drawn import DRAW, FULL, third

check = runs.Checks()
STATE = {"zero__offload_optimizer__device": "host"}
LAYOUTS = {
    "host": [(2, {}), (3, {"activation__recompute": "full", "run__lanes": "threads"}), (4, {"zero__hpz_partition_size": 2}),
             (1, {**STATE, "zero__offload_param__device": "host"}), (2, {"zero__offload_optimizer__device": "nvme", "run__lanes": "threads"}),
             (3, {**STATE, "zero__offload_param__device": "nvme"}), (4, {"zero__hpz_partition_size": 2, **STATE, "run__lanes": "threads"}),
             (4, {"mesh__pp": 2}), (4, {"mesh__replicate": 2}), (2, {"zero__sub_group_size": 900, "zero__max_live_parameters": 30000}),
             (6, {"zero__hpz_partition_size": 3, "zero__allgather_bucket_size": 4096})],
    "cuda": [(2, {"kernels__cuda_graph": "on"}), (2, {**STATE, "zero__offload_param__device": "host"}), (4, {"zero__hpz_partition_size": 2})],
}
# Of gradients in blocks: whole groups of owners, and inside groups first.
SUMS = {"host": [(2, {"zero__stage": 2}), (2, {"zero__stage": 3, **STATE}), (4, {"zero__stage": 3, "zero__hpz_partition_size": 2, "run__lanes": "threads"}),
                 (3, {"zero__stage": 3, "zero__quantized_weights": True}), (2, {"zero__stage": 2, "precision__gradients": "bf16", "batch__micro": 6}), (4, {"zero__stage": 2, "mesh__pp": 2})],
        "cuda": [(2, {"zero__stage": 2}), (4, {"zero__stage": 3, "zero__hpz_partition_size": 2})]}
# With their errors (LoCo): micro-batches in turn, two hops, gradients that go down.
KEPT = {"host": [(2, {"zero__stage": 2, "batch__micro": 2}), (4, {"zero__stage": 3, "zero__hpz_partition_size": 2, "run__lanes": "threads"}),
                 (3, {"zero__stage": 3, **STATE}), (2, {"zero__stage": 2, "precision__gradients": "bf16", "batch__micro": 6}),
                 (2, {"zero__stage": 3, "precision__compute": "fp16", "zero__quantized_weights": True})],
        "cuda": [(2, {"zero__stage": 2})]}


def name_of(kind, ranks, keys):
    return "-".join([f"{kind}-ranks{ranks}"] + [f"{key.split('__', 1)[1]}={value}" for key, value in keys.items()])


def as_planned(name, done):
    memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
    check(f"{name}: memory is what was planned", bool(memory) and all(used == planned for used, planned in memory), str(memory))


def apart(a, b):
    """The largest relative difference of losses, of the steps of the first."""
    return max(abs(a[step][0] / b[step][0] - 1) for step in a)


def distance(folder, a, b):
    """Between the master weights that two runs left."""
    one, other = (runs.read_state(folder.latest(name)) for name in (a, b))
    squares = 0
    for (group, tensor), (_, data) in one.items():
        if group == "master":
            squares += sum((x - y) ** 2 for x, y in zip(array.array("f", data), array.array("f", other[group, tensor][1])))
    return math.sqrt(squares)


def weights(folder, common, device):
    exact = {**common, "run__reproducible": True, "zero__stage": 3, "zero__quantized_weights": True}
    after = common["run__steps"] // 2
    as_planned("alone", folder.train("alone", 1, checkpoint__every=after, checkpoint__keep=0, **exact))
    losses, hashes = folder.losses("alone"), folder.hashes("alone")
    folder.train("plain", 1, **{**exact, "zero__quantized_weights": False})
    check("weights in 8 bits are others, and near", 0 < apart(losses, folder.losses("plain")) < 0.02, f"{losses} {folder.losses('plain')}")
    evaluated = lambda name: [row["val_loss"] for row in folder.metrics(name) if "val_loss" in row]
    layouts = LAYOUTS[device]
    for ranks, keys in third(layouts, device == "cuda"):
        name = name_of("weights", ranks, keys)
        as_planned(name, folder.train(name, ranks, **{**exact, **keys}))
        check(f"{name}: the bits of one rank", folder.losses(name) == losses and folder.hashes(name) == hashes and evaluated(name) == evaluated("alone"),
              f"{folder.losses(name)} instead of {losses}")
    ranks, keys = layouts[DRAW % len(layouts)]
    start = folder.run("alone") + f"/checkpoints/step-{after:08d}"
    folder.train("resumed", ranks, run__resume=start, **{**exact, **keys})
    check(f"resumed on {ranks} ranks with {keys}: the bits of one rank", folder.losses("resumed") == {step: loss for step, loss in losses.items() if step > after}
          and folder.hashes("resumed") == hashes, f"{folder.losses('resumed')} instead of {losses}")


def beside(folder, common):
    """What else decides a rank's numbers or what lies where: the bits of the same over twice the ranks."""
    experts = {"model__experts": 4, "model__experts_per_token": 2, "model__expert_ff_width": 40, "mesh__ep": 2}
    frozen = {"model__freeze": ["embedding.*", "layers.0.*"]}
    exact = {**common, "run__reproducible": True, "zero__stage": 3, "zero__quantized_weights": True, "model__kv_heads": 4, "model__vocab": 263}
    for number, (what, ranks, keys, more) in enumerate([("frozen", 1, frozen, {}), ("frozen-groups", 2, frozen, {"zero__hpz_partition_size": 2}),
                                                        ("experts", 2, experts, {}), ("tensor", 2, {"mesh__tp": 2}, {**STATE, "zero__offload_param__device": "host"}),
                                                        ("adapters", 1, {"lora__rank": 2}, {})]):
        if not FULL and (number + DRAW) % 2:
            continue
        folder.train(what, ranks, **{**exact, **keys})
        as_planned(f"{what} over twice the ranks", folder.train(f"{what}-twice", 2 * ranks, **{**exact, **keys, **more}))
        check(f"{what}: the same bits over twice the ranks", folder.losses(what) == folder.losses(f"{what}-twice") and folder.hashes(what) == folder.hashes(f"{what}-twice"),
              f"{folder.losses(what + '-twice')} instead of {folder.losses(what)}")


def gradients(folder, common, device):
    folder.train("fast", 1, **common)
    plain = folder.losses("fast")
    for ranks, keys in third(SUMS[device], device == "cuda"):
        name = name_of("gradients", ranks, keys)
        asked = {**common, **keys, "zero__quantized_gradients": True}
        as_planned(name, folder.train(name, ranks, **asked))
        losses, hashes = folder.losses(name), folder.hashes(name)
        check(f"{name}: others than plain sums, and near them", 0 < apart(losses, plain) < 0.02, f"{losses} instead of {plain}")
        folder.train(name + "-again", ranks, **asked)
        check(f"{name}: the same once more", folder.losses(name + "-again") == losses and folder.hashes(name + "-again") == hashes)


def errors(folder, common, device):
    """Error feedback. A small constant rate and plain steps: the weights are where they were, less what gradients came to."""
    sums = {**common, "precision__compute": "fp32" if device == "host" else common["precision__compute"], "optimizer__type": "sgd", "optimizer__learning_rate": 0.05,
            "learning_rate__schedule": "constant", "evaluate__every": 0, "run__steps": 5 * common["run__steps"]}
    for number, (ranks, keys) in enumerate(KEPT[device]):
        if not FULL and device == "host" and (number + DRAW) % 2:
            continue
        asked = {**sums, **keys, "zero__quantized_gradients": True}
        with_errors = {**asked, "zero__error_feedback__enabled": True}
        name = name_of("errors", ranks, keys)
        folder.train(name + "-plain", ranks, **{**asked, "zero__quantized_gradients": False})
        folder.train(name + "-without", ranks, **asked)
        as_planned(name, folder.train(name, ranks, **with_errors))
        folder.train(name + "-again", ranks, **with_errors)
        check(f"{name}: the same once more", folder.losses(name + "-again") == folder.losses(name) and folder.hashes(name + "-again") == folder.hashes(name))
        far = {which: distance(folder, name + which, name + "-plain") for which in ("", "-without")}
        check(f"{name}: weights are nearer to those of plain sums than without", 0 < far[""] < 0.5 * far["-without"], str(far))
    if device == "host":
        begun_again(folder, {**sums, "zero__stage": 2, "batch__micro": 6, "zero__quantized_gradients": True})


def begun_again(folder, asked):
    """Errors that begin at zero with each update are none, where an update is of one micro-batch; and a run whose errors begin again where it was saved goes on to the bit."""
    half = asked["run__steps"] // 2
    folder.train("none", 2, **asked)
    folder.train("at-once", 2, zero__error_feedback__enabled=True, zero__error_feedback__reset_interval=1, **asked)
    check("errors that begin at zero at each update are none", folder.losses("at-once") == folder.losses("none") and folder.hashes("at-once") == folder.hashes("none"))
    kept = {**asked, "zero__error_feedback__enabled": True, "zero__error_feedback__reset_interval": half, "checkpoint__every": half, "checkpoint__keep": 0}
    folder.train("kept", 2, **kept)
    check("errors count", folder.hashes("kept") != folder.hashes("none"))
    done = folder.train("gone-on", 2, run__resume=folder.run("kept") + f"/checkpoints/step-{half:08d}", **kept)
    check("a resume says that errors begin at zero", "errors of gradients: those of zero.error_feedback start at zero" in done.stderr, done.stderr)
    check("resumed where errors begin again: the same bits", folder.losses("gone-on") == {step: loss for step, loss in folder.losses("kept").items() if step > half}
          and folder.hashes("gone-on") == folder.hashes("kept"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    options = parser.parse_args()
    with runs.Folder() as folder:
        device, steps = options.device, 6 if options.device == "host" else 3
        common = {"run__steps": steps, "run__log_every": 1, "precision__compute": options.dtype, "model__layers": 2, "model__tied": False, "batch__global": 12,
                  "zero__param_persistence_threshold": 64, "zero__max_reuse_distance": 0, "evaluate__every": steps, "evaluate__batches": 4, "data__validation": folder.data}
        if device == "cuda":
            common.update(runs.ON_GPUS, batch__global=5)
        weights(folder, common, device)
        gradients(folder, common, device)
        errors(folder, common, device)
        if device == "host":
            beside(folder, common)
    return 0 if check.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
