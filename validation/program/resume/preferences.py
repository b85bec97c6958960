#!/usr/bin/env python3
"""Pairs of a chosen and a rejected text: tokenized and trained on, with the same bits on any layout and across resumes.
Figures are those that other commands find, and a pair has the same loss whichever pairs share its sequence."""
import json
import math
import os
import random
import sys

import runs
from drawn import FULL, third

check = runs.Checks()
# Pairs, and bytes of each text: a document has one token more than its texts have bytes, and one place less than it has tokens.
PAIRS, PROMPT, COMPLETION = 60, 10, 6
PLACES = 2 * (PROMPT + COMPLETION)  # of a pair
MODEL = {"model__vocab": 257, "batch__global": 6, "batch__micro": 1, "batch__sequence_length": PLACES, "run__steps": 6, "run__log_every": 1,
         "checkpoint__every": 3, "checkpoint__keep": 0, "data__document_mask": True, "learning_rate__warmup_steps": 1,
         "optimizer__learning_rate": 0.02, "precision__compute": "fp32", "run__reproducible": True}
EVALUATED = {"evaluate__every": 3, "evaluate__batches": 4}
LORA = {"lora__rank": 4, "lora__alpha": 8.0}
OBJECTIVES = {
    "dpo": {"preference__objective": '["dpo"]', "preference__reference": "copy", **EVALUATED},
    "adapters": {"preference__objective": '["dpo"]', "preference__reference": "adapter", **LORA, **EVALUATED},
    "simpo": {"preference__objective": '["simpo", "sft"]', "preference__weights": "[1.0, 0.2]", "preference__beta": 2.0,
              "preference__gamma": 1.0},
}
WHOLE = {"zero__stage": 3, "zero__param_persistence_threshold": 0}
LAYOUTS = [(2, {"zero__stage": 0}), (2, WHOLE), (2, {"mesh__pp": 2, "zero__stage": 1}), (2, {"activation__offload": "host"}),
           (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), (1, {"activation__recompute": "full"}), (3, WHOLE),
           (4, {"mesh__pp": 2, "zero__stage": 2, "run__lanes": "threads"})]
ALWAYS = 3  # of LAYOUTS; of the others a third
NEAR = [(2, {"mesh__tp": 2}), (2, {"mesh__cp": 2}), (2, {"mesh__cp": 2, "context__method": "ring"})]
FIGURES = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected", "val_loss")


def rows(folder, name, key):
    return {row["step"]: row[key] for row in folder.metrics(name) if key in row}


def figures_of(folder, name):
    return {key: rows(folder, name, key) for key in FIGURES}


def near(a, b, most=2e-5):
    return a.keys() == b.keys() and all(abs(a[step] - b[step]) <= most * max(1, abs(b[step])) for step in a)


def all_near(a, b):
    return all(near(a[key], b[key]) for key in b)


def title(kind, keys):
    return "-".join([kind] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()])


def tokenize(folder, name, lines, *options):
    path = os.path.join(folder.path, name + ".jsonl")
    with open(path, "w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    done = runs.tessera("tokenize", path, os.path.join(folder.path, name), "--tokenizer", "byte", *options)
    check(f"{name} is tokenized", done.returncode == 0, done.stderr)
    return os.path.join(folder.path, name, "train.h5")


def made_pairs():
    """Chosen texts go on with the letters of the prompt, rejected ones with digits."""
    draw = random.Random(17)
    text = lambda letters, n: "".join(draw.choice(letters) for _ in range(n))
    return [{"prompt": text("abcdef", PROMPT), "chosen": text("abcdef", COMPLETION), "rejected": text("0123", COMPLETION)}
            for _ in range(PAIRS)]


def check_objective(folder, kind, common):
    keys = {**common, **OBJECTIVES[kind]}
    folder.train(kind, 1, **keys)
    losses, hashes, figures, steps = folder.losses(kind), folder.hashes(kind), figures_of(folder, kind), keys["run__steps"]
    check(f"{kind}: the loss falls", len(losses) == steps and losses[steps][0] < losses[1][0], str(losses))
    evaluations = steps // keys["evaluate__every"] if "evaluate__every" in keys else 0
    counts = {key: evaluations if key == "val_loss" else steps for key in FIGURES}
    check(f"{kind}: each step has figures of its pairs", {key: len(values) for key, values in figures.items()} == counts, str(figures))
    margins = figures["rewards/margins"]
    check(f"{kind}: margins grow", margins[steps] > margins[1], str(margins))
    if kind != "simpo":
        begin = (figures["rewards/chosen"][1], figures["rewards/rejected"][1], margins[1])
        check(f"{kind}: begins at its reference", abs(losses[1][0] - math.log(2)) < 1e-6 and begin == (0, 0, 0), f"{losses[1]} {begin}")

    def same(name, ranks, after=0, **other):
        folder.train(name, ranks, **{**keys, **other})
        later = lambda values: {step: value for step, value in values.items() if step > after}
        check(f"{name}: the bits of one rank", folder.losses(name) == later(losses) and folder.hashes(name) == hashes
              and figures_of(folder, name) == {key: later(values) for key, values in figures.items()},
              f"{folder.losses(name)} instead of {losses}")

    for ranks, layout in LAYOUTS[:ALWAYS] + third(LAYOUTS[ALWAYS:]):
        same(title(f"{kind}-ranks{ranks}", layout), ranks, **layout)
    middle = keys["checkpoint__every"]
    same(f"{kind}-resumed", 2, middle, run__resume=folder.run(kind) + f"/checkpoints/step-{middle:08d}", zero__stage=2)
    for ranks, layout in NEAR if FULL else third(NEAR):
        name = title(kind, layout)
        folder.train(name, ranks, **{**keys, **layout})
        found, wanted = ({step: loss for step, (loss, _) in folder.losses(run).items()} for run in (name, kind))
        check(f"{name}: near one rank", near(found, wanted) and all_near(figures_of(folder, name), figures), f"{found} instead of {wanted}")


def evaluated(folder, name, lines):
    """Loss of all targets of such texts by the checkpoint of `packed`."""
    checkpoint = folder.run("packed") + "/checkpoints/step-00000003"
    done = runs.tessera("evaluate", checkpoint, "--data", tokenize(folder, name, lines), "--json")
    check(f"{name} is evaluated", done.returncode == 0, done.stderr)
    found = json.loads(done.stdout)
    return found["loss"] * found["targets"]


def check_figures(folder, pairs, common):
    """A step of one pair: its loss is what its figures say. A step of all pairs: `evaluate` finds their log-probabilities."""
    keys = {**common, **OBJECTIVES["dpo"]}
    folder.train("single", 1, **{**keys, "batch__global": 1})
    said = {step: math.log1p(math.exp(-margin)) for step, margin in rows(folder, "single", "rewards/margins").items()}
    check("the loss of a pair is that of its margin", len(said) == keys["run__steps"] and near(rows(folder, "single", "loss"), said),
          str(said))
    packed = {"data__packing": "documents", "batch__sequence_length": 3 * PLACES, "batch__global": PAIRS // 3}
    folder.train("packed", 1, **{**keys, **packed})
    folder.train("apart", 1, **{**keys, "batch__global": PAIRS, "evaluate__batches": PAIRS // 5})
    one, two = ({"loss": rows(folder, name, "loss"), **figures_of(folder, name)} for name in ("packed", "apart"))
    check("whichever pairs share a sequence, losses are the same", all(map(len, two.values())) and all_near(one, two), f"{one} {two}")
    for side in "chosen", "rejected":
        lines = [{"prompt": pair["prompt"], "completion": pair[side]} for pair in pairs]
        # The last document of a file of texts has no end token: once it stands behind itself, once alone.
        found = [evaluated(folder, f"{side}-{len(of_file)}", of_file) for of_file in (lines + lines[-1:], lines[-1:])]
        logps, figure = (found[1] - found[0]) / PAIRS, one[f"logps/{side}"][4]
        check(f"log-probabilities of {side} texts are those of evaluate", abs(logps / figure - 1) < 1e-5, f"{figure}, not {logps}")


def check_from_hf(folder):
    """A deck that is printed for a model and pairs trains as it stands, on the whole model and on adapters."""
    model, deck = os.path.join(folder.path, "model"), os.path.join(folder.path, "printed.toml")
    done = runs.tessera("consolidate", folder.latest("dpo"), model)
    check("a model is exported", done.returncode == 0, done.stderr)
    for name, options in ("whole", []), ("lora", ["--lora", "4"]):
        printed = runs.tessera("deck", "from-hf", model, "--dpo", "--data", os.path.join(folder.path, "train"), *options)
        with open(deck, "w") as out:
            out.write(printed.stdout)
        done = runs.tessera("train", deck, "run.steps=4", "run.device=host", "optimizer.learning_rate=1e-2", "precision.compute=fp32",
                            f"run.output_dir={folder.run('printed-' + name)}")
        check(f"a printed deck trains ({name})", printed.returncode == done.returncode == 0, printed.stderr + done.stderr)
        losses = folder.losses("printed-" + name)
        check(f"and its loss falls ({name})", abs(losses[1][0] - math.log(2)) < 1e-6 and losses[4][0] < losses[1][0], str(losses))
    done = runs.tessera("deck", "from-hf", model, "--data", os.path.join(folder.path, "train"))
    check("without --dpo pairs are refused", done.returncode == 2 and "Give --dpo" in done.stderr, done.stderr)


def check_refused(folder, pairs, common):
    keys = {**common, **OBJECTIVES["dpo"]}
    texts = tokenize(folder, "texts", [{"text": pair["prompt"] * 4} for pair in pairs])
    done = folder.train("of-texts", 1, expect=3, **{**keys, "data__train": texts})
    check("a file of texts is refused", "holds texts, but the objective of this run takes preference pairs" in done.stderr, done.stderr)
    done = folder.train("pairs-as-texts", 1, expect=3, **common)
    check("pairs are no texts", "which this run would learn as texts" in done.stderr, done.stderr)
    done = folder.train("long", 1, expect=3, **{**keys, "batch__sequence_length": PLACES - 1})
    check("a pair that is too long is named", f"pair 0 takes {PLACES} places" in done.stderr, done.stderr)


def main():
    pairs = made_pairs()
    with runs.Folder() as folder:
        common = {**MODEL, "data__train": tokenize(folder, "train", pairs, "--preferences"),
                  "data__validation": tokenize(folder, "validation", pairs[::5], "--preferences")}
        for kind in OBJECTIVES:
            check_objective(folder, kind, common)
        check_figures(folder, pairs, common)
        check_from_hf(folder)
        check_refused(folder, pairs, common)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
