#!/usr/bin/env python3
"""1-bit Adam (optimizer.type = "onebit_adam"): plain Adam until freeze_step, then momenta that meet as signs. The same once more and over lanes, memory as planned, resumes before,
at and after freeze_step at the same number of ranks and at another, phases of a ramp beside it.
    onebit.py [--dtype fp32|bf16] [--device host|cuda]"""
import argparse
import re

import runs

check = runs.Checks()
FREEZE, STEPS = 4, 9


def as_planned(name, done):
    memory = re.findall(r"memory (\S+ \S+) of (\S+ \S+)", done.stderr)
    check(f"{name}: memory is what was planned", bool(memory) and all(used == planned for used, planned in memory), str(memory))


def later(losses, step):
    return {at: loss for at, loss in losses.items() if at > step}


def until(losses, step):
    return {at: loss for at, loss in losses.items() if at <= step}


def same(folder, name, of, after=0):
    check(f"{name}: the bits of {of}", folder.losses(name) == later(folder.losses(of), after) and folder.hashes(name) == folder.hashes(of),
          f"{folder.losses(name)} instead of {later(folder.losses(of), after)}")


def frozen_parts(folder, common):
    """A run is its warmup until freeze_step, to the bit; then it goes another way, near the warmup's."""
    folder.train("warm", 2, **{**common, "optimizer__freeze_step": STEPS})
    as_planned("frozen", folder.train("frozen", 2, checkpoint__every=1, checkpoint__keep=0, **common))
    warm, frozen = folder.losses("warm"), folder.losses("frozen")
    check("steps until freeze_step are plain Adam's, and so is the loss of the next, whose norm is of ranks' own gradients",
          until(warm, FREEZE) == until(frozen, FREEZE) and warm[FREEZE + 1][0] == frozen[FREEZE + 1][0] and warm[FREEZE + 1][1] < frozen[FREEZE + 1][1], f"{warm} {frozen}")
    far = [abs(frozen[step][0] / warm[step][0] - 1) for step in range(FREEZE + 2, STEPS + 1)]
    check("later ones are others, and near", min(far) > 0 and max(far) < 0.1, str(far))
    folder.train("again", 2, **common)
    same(folder, "again", "frozen")
    if common.get("run__device") != "cuda":
        folder.train("threads", 2, **{**common, "run__lanes": "threads"})
        same(folder, "threads", "frozen")
        as_planned("async", folder.train("async", 2, **{**common, "checkpoint__async": True, "checkpoint__every": 2}))
        same(folder, "async", "frozen")


def one_rank(folder, common):
    """The mean of squares is frozen, and momenta stay as they are: exact, so of the same bits in any layout of one rank."""
    as_planned("alone", folder.train("alone", 1, run__reproducible=True, **common))
    folder.train("alone-warm", 1, run__reproducible=True, **{**common, "optimizer__freeze_step": STEPS})
    check("one rank freezes too", until(folder.losses("alone"), FREEZE + 1) == until(folder.losses("alone-warm"), FREEZE + 1) and folder.hashes("alone") != folder.hashes("alone-warm"))


def resumes(folder, common):
    for step in (2, FREEZE, FREEZE + 3):
        start = folder.run("frozen") + f"/checkpoints/step-{step:08d}"
        done = folder.train(f"resumed-{step}", 2, run__resume=start, **common)
        said = "the rounding errors of signs start at zero" in done.stderr
        check(f"resumed at {step}: errors are as they were", not said, done.stderr)
        same(folder, f"resumed-{step}", "frozen", step)
        done = folder.train(f"other-{step}", 3, run__resume=start, **common)
        said = "the rounding errors of signs start at zero" in done.stderr
        check(f"resumed at {step} on 3 ranks: errors are dropped, and that is said", said == (step > FREEZE), done.stderr)
        far = [abs(folder.losses(f"other-{step}")[at][0] / loss[0] - 1) for at, loss in later(folder.losses("frozen"), step).items()]
        check(f"resumed at {step} on 3 ranks: near", max(far) < 0.1, str(far))


def beside(folder, common):
    ramp = "[{ until_step = 2, global = 6 }, { until_step = 6, global = 8, sequence_length = 6 }]"
    for name, ranks, keys in (("ramp", 2, {"batch__ramp": ramp}), ("halves", 2, {"precision__compute": "bf16", "precision__gradients": "bf16", "batch__micro": 6}),
                              ("frozen-tensors", 3, {"model__freeze": ["embedding.*", "layers.0.*"]}), ("adapters", 2, {"lora__rank": 2}),
                              ("experts", 2, {"model__experts": 4, "model__experts_per_token": 2, "model__expert_ff_width": 40}), ("clipped", 2, {"optimizer__gradient_clipping": 0.05})):
        asked = {**common, **keys}
        as_planned(name, folder.train(name, ranks, **asked))
        folder.train(name + "-again", ranks, **asked)
        same(folder, name + "-again", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    options = parser.parse_args()
    with runs.Folder() as folder:
        common = {"optimizer__type": "onebit_adam", "optimizer__freeze_step": FREEZE, "run__steps": STEPS, "run__log_every": 1, "precision__compute": options.dtype, "batch__global": 12,
                  "zero__stage": 0, "optimizer__learning_rate": 1e-3, "learning_rate__schedule": "constant"}
        if options.device == "cuda":
            common.update(runs.ON_GPUS, batch__global=4)
        frozen_parts(folder, common)
        resumes(folder, common)
        if options.device == "host":
            one_rank(folder, common)
            beside(folder, common)
    return 0 if check.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
