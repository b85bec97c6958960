#!/usr/bin/env python3
"""Several token files with weights: the same bits at any number of ranks, on any layout, and after a kill; each file gives its share of the samples, whatever
of loss masks and documents it has; and what is no such mixture is refused."""
import json
import os
import random
import shutil
import sys

import runs

check = runs.Checks()
WEIGHTS = [0.5, 0.3, 0.2]
FILES = []  # their paths, by make_files
MODEL = {"model__vocab": 257, "model__heads": 4, "model__kv_heads": 4, "batch__global": 7, "batch__micro": 1, "batch__sequence_length": 32, "run__steps": 6,
         "run__log_every": 1, "checkpoint__every": 3, "checkpoint__keep": 0, "data__weights": WEIGHTS, "run__reproducible": True}
KINDS = {"rows": {}, "documents": {"data__document_mask": True, "data__packing": "documents", "data__too_long": "split"}}
LAYOUTS = [(2, {"zero__stage": 1}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"mesh__pp": 2, "run__lanes": "threads"})]


def tokenize(folder, name, lines, *options):
    path = os.path.join(folder.path, name + ".jsonl")
    with open(path, "w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    done = runs.tessera("tokenize", path, os.path.join(folder.path, name), *options)
    check(f"{name} is tokenized", done.returncode == 0, done.stderr)
    return os.path.join(folder.path, name, "train.h5")


def make_files(folder):
    """Texts, prompts with completions (a loss mask), and a file of few samples, which the run passes over more than once."""
    draw = random.Random(3)
    word = lambda longest: "".join(draw.choice("abcdefgh ") for _ in range(draw.randrange(2, longest)))
    return [tokenize(folder, "texts", [{"text": word(80)} for _ in range(200)]),
            tokenize(folder, "pairs", [{"prompt": word(30), "completion": word(30)} for _ in range(200)]),
            tokenize(folder, "few", [{"text": word(25)} for _ in range(15)])]


def rows(folder, name, key):
    return {row["step"]: row[key] for row in folder.metrics(name) if key in row}


def check_layouts(folder, kind, common):
    """The bits of one rank on all layouts and across a resume."""
    done = folder.train(kind, 1, **common)
    steps, batch = common["run__steps"], common["batch__global"]
    served = rows(folder, kind, "samples_of_files")
    check(f"{kind}: each file gives its share after every step", len(served) == steps and all(
        sum(counts) == step * batch and all(abs(count - weight * step * batch) < 1 for count, weight in zip(counts, WEIGHTS)) for step, counts in served.items()), str(served))
    check(f"{kind}: the start says how often it passes over each", done.stderr.count("passes over its") == 3 and "few/train.h5: 20 % of the samples" in done.stderr, done.stderr)
    targets = rows(folder, kind, "targets")
    check(f"{kind}: a file's loss mask counts beside files without one", len(targets) == steps and all(0 < count < batch * common["batch__sequence_length"] for count in targets.values()),
          str(targets))

    losses, counts = rows(folder, kind, "loss_of_files"), rows(folder, kind, "targets_of_files")
    check(f"{kind}: each file's loss stands by its name", all(list(row) == FILES for row in losses.values()) and len(losses) == steps, str(losses))
    whole = {step: sum((loss or 0) * n for loss, n in zip(row.values(), counts[step])) / targets[step] for step, row in losses.items()}
    check(f"{kind}: files' losses make up the step's", all(sum(counts[step]) == targets[step] and abs(whole[step] / loss[0] - 1) < 1e-12
          for step, loss in folder.losses(kind).items()), f"{whole} {counts}")
    check(f"{kind}: a line of the log names them", done.stderr.count("loss of files") == steps and f"{FILES[0]} {losses[1][FILES[0]]:.4f}" in done.stderr, done.stderr)
    # The first file keeps the run's order: alone it gives the samples that it gives in the mixture's first batch.
    folder.train(f"{kind}-first", 1, **{**common, "data__train": FILES[0], "data__weights": "[]", "batch__global": served[1][0], "run__steps": 2})
    first = folder.losses(f"{kind}-first")[1][0]
    check(f"{kind}: a file's loss is that of its samples", abs(losses[1][FILES[0]] / first - 1) < 1e-12, f"{losses[1]} {first}")
    check(f"{kind}: one file has no line of its own", not rows(folder, f"{kind}-first", "loss_of_files"))

    def same(name, ranks, after=0, **keys):
        folder.train(name, ranks, **{**common, **keys})
        later = lambda values: {step: value for step, value in values.items() if step > after}
        check(f"{name}: the bits of one rank", folder.losses(name) == later(folder.losses(kind)) and folder.hashes(name) == folder.hashes(kind)
              and all(rows(folder, name, key) == later(rows(folder, kind, key)) for key in ("targets", "samples_of_files", "targets_of_files", "loss_of_files")),
              f"{folder.losses(name)} instead of {folder.losses(kind)}")

    for ranks, keys in LAYOUTS:
        same("-".join([kind, f"ranks{ranks}"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()]), ranks, **keys)
    half = common["checkpoint__every"]
    for axis in "tp", "cp":
        name = f"{kind}-{axis}"
        folder.train(name, 2, **{**common, f"mesh__{axis}": 2})
        near = all(abs(loss / losses[step][file] - 1) < 2e-2 for step, row in rows(folder, name, "loss_of_files").items() for file, loss in row.items() if loss)
        check(f"{name}: as many targets of each file, and near its loss", near and rows(folder, name, "targets_of_files") == counts, str(rows(folder, name, "loss_of_files")))
    same(f"{kind}-resumed", 2, half, run__resume=folder.run(kind) + f"/checkpoints/step-{half:08d}", zero__stage=2)


def check_kill(folder, common):
    """A run that was killed goes on, on another number of ranks, with the samples that nobody disturbed would have had."""
    endless = {**common, **runs.ENDLESS, "checkpoint__every": 2}
    reference = runs.Reference(folder, **endless)
    under_way = folder.start("killed", 2, **endless)
    under_way.wait_for_step(5)
    check("the run was killed under way", under_way.kill())
    end = rows(folder, "killed", "loss").popitem()[0] + 3
    folder.train("killed", 3, **{**endless, "run__steps": end})
    losses, hashes = reference.at(end)
    check("killed and gone on with other ranks: the bits of an undisturbed run", folder.losses("killed") == losses and folder.hashes("killed") == hashes,
          f"{folder.losses('killed')} instead of {losses}")


def check_refusals(folder, files, common):
    def refused(name, status, words, of=None, **keys):
        done = folder.train(of or name, 2, expect=status, **{**common, **keys})
        check(f"{name} is refused", all(word in done.stderr for word in words), done.stderr)

    refused("another weight on a resume", 2, ["data.weights = [0.5, 0.3, 0.2], here [0.5, 0.25, 0.25]"], of="rows", data__weights=[0.5, 0.25, 0.25])
    refused("another order of files on a resume", 2, ["data.train holds other data", "file 1 was ", "the same files in another order"], of="rows", data__train=json.dumps(files[::-1]))
    refused("a file less on a resume", 2, ["data.weights = ["], of="rows", data__train=json.dumps(files[:2]), data__weights=[0.5, 0.3])
    refused("a file that is not there", 3, ["gone.h5"], data__train=json.dumps(files[:2] + [folder.path + "/gone.h5"]))
    refused("too many passes over a file", 3, ["few/train.h5, which has", "data.epochs allows 0.5"], data__epochs=[0, 0, 0.5])
    copy = os.path.join(folder.path, "copy.h5")
    shutil.copyfile(files[1], copy)
    refused("a copy of a file", 3, ["pairs/train.h5 and", "copy.h5 hold the same tokens"], data__train=json.dumps(files[:2] + [copy]))
    short = tokenize(folder, "short", [{"text": "too short"}])
    refused("a file of less than a sample", 3, ["short/train.h5 has 9 tokens"], data__train=json.dumps(files[:2] + [short]))


def check_passes(folder, files, common):
    """run.epochs counts the samples of the files, and stands in the run's folder as steps, with which it goes on."""
    keys = {**common, "data__train": files[2], "data__weights": "[]", "run__epochs": 1.5, "learning_rate__warmup_ratio": 0.3, "checkpoint__every": 0}
    del keys["run__steps"]
    said = folder.train("passes", 1, **keys).stderr
    samples = int(said.split("passes over its ")[1].split()[0])
    steps = -(-(-(-samples * 3 // 2)) // common["batch__global"])
    with open(folder.run("passes") + "/deck.toml") as deck:
        lines = deck.read().splitlines()
    check("run.epochs becomes steps", max(folder.losses("passes")) == steps and f"steps = {steps}" in lines and "epochs = 0.0" in lines, said)
    check("and learning_rate.warmup_ratio a share of them", f"warmup_steps = {-(-steps * 3 // 10)}" in lines, "\n".join(lines))
    again = folder.train("passes", 2, **keys).stderr
    check("the same command resumes", f"all {steps} steps are done already" in again, again)
    folder.train("passes", 2, **{**keys, "run__epochs": 3, "learning_rate__warmup_ratio": 0, "learning_rate__warmup_steps": -(-steps * 3 // 10)})
    check("more passes make it longer", max(folder.losses("passes")) == -(-samples * 3 // common["batch__global"]), str(folder.losses("passes")))


def main():
    with runs.Folder() as folder:
        files = make_files(folder)
        FILES.extend(files)
        common = {**MODEL, "data__train": json.dumps(files)}
        for kind, keys in KINDS.items():
            check_layouts(folder, kind, {**common, **keys})
        check_kill(folder, {**common, **KINDS["documents"]})
        check_refusals(folder, files, common)
        check_passes(folder, files, common)
        # A mixture of one file is that file, and a file that is passed over often is said.
        folder.train("alone", 1, **{**common, "data__train": files[0], "data__weights": "[]"})
        folder.train("list", 1, **{**common, "data__train": json.dumps(files[:1]), "data__weights": [3]})
        check("a mixture of one file is that file", folder.losses("alone") == folder.losses("list") and folder.hashes("alone") == folder.hashes("list"))
        often = {**common, "run__steps": 60, "checkpoint__every": 0}
        warning = "few/train.h5 "
        done = folder.train("often", 1, **often)
        check("many passes over a file are warned of", "the run passes over " in done.stderr and warning in done.stderr.split("the run passes over ")[1], done.stderr)
        done = folder.train("meant", 1, **{**often, "data__epochs": [0, 0, 1000]})
        check("unless they are meant", "the run passes over " not in done.stderr, done.stderr)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
