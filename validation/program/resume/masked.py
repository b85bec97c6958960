#!/usr/bin/env python3
"""Prompts and completions: tokenized with a loss mask, trained on any layout with the same bits, and the loss is of completions alone.
    masked.py [--device host|cuda]"""
import argparse
import json
import os
import random
import sys

import runs
from drawn import third

check = runs.Checks()
MODEL = {"model__vocab": 257, "model__heads": 4, "model__kv_heads": 4, "model__layers": 2, "batch__global": 10, "batch__micro": 1, "batch__sequence_length": 48,
         "run__steps": 6, "run__log_every": 1, "checkpoint__every": 6, "evaluate__every": 6, "evaluate__batches": 3, "model__tied": False}
# Of prompts nobody can guess what comes next; a completion follows from its first letter.
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LAYOUTS = {
    "host": [(2, {"zero__stage": 1}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"mesh__pp": 2, "zero__stage": 2, "run__lanes": "threads"}),
             (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), (4, {"mesh__replicate": 2, "zero__stage": 1}),
             (1, {"activation__recompute": "full"})],
    "cuda": [(2, {"zero__stage": 3, "zero__param_persistence_threshold": 0})],
}
NEAR = {"host": [(2, {"mesh__tp": 2}), (2, {"mesh__cp": 2}), (2, {"mesh__cp": 2, "context__method": "ring"}), (4, {"mesh__tp": 2, "mesh__cp": 2, "zero__stage": 3})],
        "cuda": [(2, {"mesh__tp": 2})]}


def tokenize(folder, name, lines):
    path = os.path.join(folder.path, name + ".jsonl")
    with open(path, "w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    done = runs.tessera("tokenize", path, os.path.join(folder.path, name), "--validation", "0.2")
    check(f"{name} is tokenized", done.returncode == 0, done.stderr)
    return os.path.join(folder.path, name), done.stdout


def rows(folder, name, key):
    return {row["step"]: row[key] for row in folder.metrics(name) if key in row}


def check_task(folder, checkpoint, pairs, draw):
    """Completions that repeat their letter against others of as many: a model that has learned them answers right, and details add up."""
    task, details = os.path.join(folder.path, "task.jsonl"), os.path.join(folder.path, "details.jsonl")
    with open(task, "w") as out:
        for pair in pairs:
            answer, letter = draw.randrange(3), pair["completion"]
            wrong = ["".join(draw.choice(ALPHABET) for _ in letter) + "!" for _ in range(2)]
            out.write(json.dumps({"context": pair["prompt"], "choices": wrong[:answer] + [letter + letter[0]] + wrong[answer:], "answer": answer}) + "\n")
        out.write(json.dumps({"text": pairs[0]["prompt"] * 3}) + "\n")
    command = ["evaluate", checkpoint, "--task", task]
    done = runs.tessera(*command, "--json", "--details", details)
    said, lines = json.loads(done.stdout), [json.loads(line) for line in open(details)]
    questions = [line for line in lines if "answer" in line]
    right = sum(max(range(3), key=lambda i: line["log_likelihoods"][i]) == line["answer"] for line in questions) / len(questions)
    check("a task's accuracy is that of its details", len(questions) == len(pairs) == said["questions"] and said["accuracy"] == right and said["documents"] == 1
          and abs(lines[-1]["loss"] - said["loss"]) < 1e-9, done.stdout)
    check("what was learned is answered", said["accuracy"] > 0.9 > said["chance"] * 2, done.stdout)
    done = runs.tessera(*command)
    check("a task in words", f"{len(pairs)} questions: " in done.stdout and "bits a byte" in done.stdout, done.stdout)
    done = runs.tessera(*command, "--data", task)
    check("a task or a token file", done.returncode == 2, done.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    draw = random.Random(7)
    word = lambda length: "".join(draw.choice(ALPHABET) for _ in range(length))
    pairs = [{"prompt": word(draw.randrange(5, 60)) + "=", "completion": draw.choice(ALPHABET) * draw.randrange(3, 30)} for _ in range(400)]
    with runs.Folder() as folder:
        data, said = tokenize(folder, "pairs", pairs)
        # What follows a prompt: the completion and, but for the last document of each file, what ends it.
        cut = len(pairs) - len(pairs) // 5
        counted = [sum(len(pair["completion"]) + 1 for pair in part) - 1 for part in (pairs[:cut], pairs[cut:])]
        check("as many tokens count as completions have", f"{counted[0]} of which count" in said and f"{counted[1]} of which count" in said, said)
        common = {**MODEL, "data__train": data + "/train.h5", "data__validation": data + "/val.h5"}
        if device == "cuda":
            common.update(runs.ON_GPUS, model__kv_heads=2, run__steps=3, checkpoint__every=3, evaluate__every=3)
        exact = {**common, "run__reproducible": True}
        folder.train("alone", 1, **exact)
        losses, hashes, targets, values = folder.losses("alone"), folder.hashes("alone"), rows(folder, "alone", "targets"), rows(folder, "alone", "val_loss")
        tokens = common["batch__global"] * common["batch__sequence_length"]
        check("each step counts its targets", len(targets) == common["run__steps"] and all(0 < count < tokens for count in targets.values()), str(targets))
        for ranks, keys in third(LAYOUTS[device], device == "cuda"):
            name = "-".join([f"ranks{ranks}"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()])
            folder.train(name, ranks, **{**exact, **keys})
            check(f"{name}: the bits of one rank", folder.losses(name) == losses and folder.hashes(name) == hashes and rows(folder, name, "targets") == targets
                  and rows(folder, name, "val_loss") == values, f"{folder.losses(name)} instead of {losses}")
        common.update(precision__compute="fp32")
        folder.train("fast", 1, **common)
        for ranks, keys in NEAR[device]:
            name = "-".join(["fast"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()])
            folder.train(name, ranks, **{**common, **keys})
            pairs_of = [(folder.losses(name)[step][0], loss[0]) for step, loss in folder.losses("fast").items()]
            check(f"{name}: near one rank", all(abs(a / b - 1) < (1e-5 if device == "host" else 1e-4) for a, b in pairs_of) and rows(folder, name, "targets") == rows(folder, "fast", "targets"),
                  str(pairs_of))
        evaluated = json.loads(runs.tessera("evaluate", folder.latest("alone"), "--data", data + "/val.h5", "--json").stdout)
        check("tessera evaluate counts targets too", 0 < evaluated["targets"] < evaluated["tokens"] and evaluated["targets"] <= counted[1], str(evaluated))
        if device == "host":
            # Completions can be learned, prompts cannot: with a mask the loss comes below what prompts would hold it at.
            learn = {**common, "run__steps": 120, "optimizer__learning_rate": 1e-2, "checkpoint__every": 120, "evaluate__every": 120}
            folder.train("masked", 1, **learn)
            plain, _ = tokenize(folder, "plain", [{"text": pair["prompt"] + pair["completion"]} for pair in pairs])
            folder.train("plain", 1, **{**learn, "data__train": plain + "/train.h5", "data__validation": plain + "/val.h5"})
            masked, unmasked = rows(folder, "masked", "val_loss")[120], rows(folder, "plain", "val_loss")[120]
            check("completions are learned", masked < 0.5 * unmasked, f"{masked} with a mask, {unmasked} without")
            check("without a mask no targets are counted", not rows(folder, "plain", "targets"))
            check_task(folder, folder.latest("masked"), pairs[-40:], draw)
            # A batch of which no target counts moves no gradient, and is said.
            nothing, _ = tokenize(folder, "nothing", [{"prompt": word(4000), "completion": "a"}] * 5)
            done = folder.train("nothing", 1, **{**common, "data__train": nothing + "/train.h5", "data__validation": nothing + "/val.h5"})
            empty = [step for step, count in rows(folder, "nothing", "targets").items() if count == 0]
            check("batches without targets have a loss of 0", empty and all(folder.losses("nothing")[step][0] == 0 for step in empty), str(folder.losses("nothing")))
            check("and are said", "no target" in done.stderr + done.stdout, done.stderr)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
