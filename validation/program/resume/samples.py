#!/usr/bin/env python3
"""[samples]: texts that the model continues while it is trained stand in the log and in RUN/samples.jsonl, are those of the checkpoint of that step, are the same on every
layout that makes them, change no bit of the training, and outlive kills once each.
    samples.py"""
import json
import os
import subprocess
import sys

import runs
from drawn import DRAW, FULL

check = runs.Checks()
# Of bytes, so that no tokenizer is needed.
KEYS = {"model__vocab": 257, "batch__global": 4, "model__layers": 2, "learning_rate__schedule": "constant", "learning_rate__warmup_steps": 0, "run__reproducible": True,
        "checkpoint__every": 3, "checkpoint__keep": 0, "run__steps": 7, "optimizer__learning_rate": 1e-2}
PROMPTS = ["In the", "a\tb"]
ON = {"samples__every": 3, "samples__prompts": json.dumps(PROMPTS), "samples__tokens": 24}
LAYOUTS = [(2, {"zero__stage": 1}), (2, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"zero__stage": 2, "mesh__replicate": 2}),
           (2, {"zero__stage": 3, "zero__offload_optimizer__device": "host", "zero__offload_param__device": "host"}),
           (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), (1, {"activation__recompute": "full"})]


def rows_of(folder, name):
    with open(os.path.join(folder.run(name), "samples.jsonl")) as lines:
        return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def main():
    with runs.Folder() as folder:
        folder.train("without", 1, **KEYS)
        done = folder.train("plain", 1, **KEYS, **ON)
        rows, text = rows_of(folder, "plain"), done.stdout + done.stderr
        check("texts of every third step and of the last", [row["step"] for row in rows] == [3, 3, 6, 6, 7, 7] and [row["prompt"] for row in rows[:2]] == ["In the", "a\tb"], str(rows))
        check("of so many tokens, prompt included", all(0 <= row["tokens"] <= 24 - 1 - len(row["prompt"]) for row in rows) and any(row["tokens"] == 17 for row in rows), str(rows))
        check("the log has them", 'step 3: "In the" continues: "' in text and 'step 7: "a\\u0009b" continues: "' in text, text)
        check("no bit of the training changes", folder.hashes("plain") == folder.hashes("without") and folder.losses("plain") == folder.losses("without"))
        for step in (3, 6):
            checkpoint = os.path.join(folder.run("plain"), "checkpoints", f"step-{step:08}")
            made = subprocess.run([runs.TESSERA, "generate", checkpoint, "--prompt", "In the", "--tokens", "17", "--temperature", "0"], capture_output=True)
            said = next(row["text"] for row in rows if row["step"] == step and row["prompt"] == "In the")
            # Bytes that are no characters are shown as such, one or many.
            check(f"those of step {step} are the texts of its checkpoint", made.returncode == 0 and
                  made.stdout.decode(errors="replace").replace("\ufffd", "") == f"In the{said}\n".replace("\ufffd", ""), f"{made.stdout!r} {said!r} {made.stderr!r}")
        for ranks, layout in LAYOUTS if FULL else [LAYOUTS[DRAW % len(LAYOUTS)], LAYOUTS[1]]:
            name = "-".join(f"{key.split('__')[-1]}={value}" for key, value in layout.items())
            folder.train(name, ranks, **{**KEYS, **ON, **layout})
            check(f"the same texts and bits on {ranks} ranks, {name}", rows_of(folder, name) == rows and folder.hashes(name) == folder.hashes("plain"), str(rows_of(folder, name)))
        drawn = {**KEYS, **ON, "samples__temperature": 0.9, "samples__top_k": 40}
        folder.train("drawn", 1, **drawn)
        folder.train("drawn-2", 2, **drawn, zero__stage=2)
        texts = [row["text"] for row in rows_of(folder, "drawn")]
        check("drawn by the run's seed", rows_of(folder, "drawn") == rows_of(folder, "drawn-2") and texts != [row["text"] for row in rows] and len(set(texts)) > 2, str(texts))
        folder.train("cut", 1, **{**KEYS, **ON, "run__steps": 4})
        folder.train("cut", 2, **{**KEYS, **ON})
        check("a resume cuts texts of steps that are made again, and makes them once", [row["step"] for row in rows_of(folder, "cut")] == [3, 3, 4, 4, 6, 6, 7, 7], str(rows_of(folder, "cut")))
        listed = os.path.join(folder.path, "prompts.txt")
        with open(listed, "w") as out:
            out.write("one\r\n\ntwo words\n")
        folder.train("file", 1, **{**KEYS, "samples__every": 7, "samples__file": listed, "samples__prompts": '["zero"]', "samples__tokens": 12})
        check("prompts of a file, one a line, after those of the deck", [row["prompt"] for row in rows_of(folder, "file")] == ["zero", "one", "two words"])
        done = runs.tessera(*folder.arguments("long", **{**KEYS, **ON, "samples__tokens": 7}))
        check("a prompt without room is refused, with the tokens that it takes", done.returncode == 3 and 'In the" of [samples] has 7 tokens' in done.stderr and "samples.tokens=71" in done.stderr,
              done.stderr)
        done = runs.tessera(*folder.arguments("words", **{**KEYS, **ON, "model__vocab": 211}))
        check("a run without a tokenizer is refused", done.returncode == 2 and "data.tokenizer=DIR" in done.stderr, done.stderr)
        planned = [json.dumps(folder.plan(1, **{**KEYS, **more})) for more in ({}, ON)]
        check("the plan has the caches", '"caches"' in planned[1] and '"caches"' not in planned[0], planned[1])
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
