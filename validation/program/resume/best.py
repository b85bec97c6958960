#!/usr/bin/env python3
"""The best checkpoint and early stopping. The checkpoint of the lowest validation loss stays beside checkpoint.keep and `best` leads to it, across kills and resumes and on
other layouts; a run whose evaluations get no better saves and ends with status 0, and a resume does not forget its patience.
    best.py"""
import json
import os
import random
import re
import struct
import sys

import runs

check = runs.Checks()
# The texts of both files hold the same seven tokens; their order can be learnt in one alone. So the validation loss falls, and then rises.
KEYS = {"batch__global": 4, "model__layers": 1, "run__reproducible": True, "checkpoint__every": 5, "checkpoint__keep": 1, "checkpoint__keep_best": True,
        "learning_rate__schedule": "constant", "learning_rate__warmup_steps": 0, "run__log_every": 1, "optimizer__learning_rate": 1e-2, "evaluate__every": 2, "evaluate__batches": 4,
        "run__steps": 40}


def spill(folder, name, tokens):
    path = os.path.join(folder.path, name)
    with open(path, "wb") as out:
        out.write(struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def texts(folder):
    draw = random.Random(7)
    return {"data__train": spill(folder, "order.bin", [i * i % 7 for i in range(8000)]),
            "data__validation": spill(folder, "no-order.bin", [draw.randrange(7) for _ in range(2000)])}


def validation(folder, name):
    losses = {}
    for row in folder.metrics(name):
        if "val_loss" in row:
            losses[row["step"]] = row["val_loss"]
    return losses


def best_of(losses):
    return min(losses, key=lambda step: (losses[step], step))


def steps_kept(folder, name):
    names = os.listdir(os.path.join(folder.run(name), "checkpoints"))
    return sorted(int(entry[5:]) for entry in names if re.fullmatch(r"step-\d+", entry))


def link(folder, name):
    return os.readlink(os.path.join(folder.run(name), "checkpoints", "best"))


def path_of_best(folder, name):
    return os.path.join(folder.run(name), "checkpoints", "best")


def values_of(path):
    return json.loads(runs.tessera("inspect", path, "--json").stdout)


def events(folder, name):
    with open(os.path.join(folder.run(name), "events.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def best_stays(folder, keys):
    done = folder.train("whole", 1, **keys)
    losses = validation(folder, "whole")
    best = best_of(losses)
    check("the validation loss falls and rises again", 2 < best < 34 and losses[40] > losses[best] + 0.01, str(losses))
    check("best leads to the lowest of them", link(folder, "whole") == f"step-{best:08}", link(folder, "whole"))
    check("it stays beside the newest alone", steps_kept(folder, "whole") == [best, 40], str(steps_kept(folder, "whole")))
    text = done.stdout + done.stderr
    check("the log says so", f"step {best}: validation loss {losses[best]:.4f}, the best so far" in text and f"the best is {losses[best]:.4f}, of step {best}" in text, text)
    rows = [row for row in folder.metrics("whole") if "val_loss" in row]
    check("metrics have the best so far", [row["best_val_loss"] for row in rows] == [min(r["val_loss"] for r in rows[:k + 1]) for k in range(len(rows))])
    named = path_of_best(folder, "whole")
    read = values_of(named)
    check("inspect takes it, and says which it is", read["step"] == best and read["run"]["best_step"] == best and
          read["run"]["best_validation_loss"] == losses[best], str(read["run"]))
    measured = json.loads(runs.tessera("evaluate", named, "--data", keys["data__validation"], "--json").stdout)
    check("evaluate takes it", measured["step"] == best, str(measured))
    for command in (("generate", named, "--prompt-tokens", "1,2", "--tokens", "3"), ("consolidate", named, os.path.join(folder.path, "out")), ("verify", named)):
        done = runs.tessera(*command)
        check(f"{command[0]} takes it", done.returncode == 0, done.stderr)
    done = runs.tessera("runs", "report", folder.run("whole"))
    check("the page names its step", done.returncode == 0 and f"best, of step {best}" in open(os.path.join(folder.run("whole"), "report.html")).read(), done.stderr)
    folder.train("other", 2, **{**keys, "zero__stage": 3, "checkpoint__async": True})
    check("the same best on another layout, saved beside the steps", validation(folder, "other") == losses and link(folder, "other") == link(folder, "whole") and
          steps_kept(folder, "other") == [best, 40], str((validation(folder, "other"), steps_kept(folder, "other"))))
    return best, losses


def across_kills(folder, keys, best, losses):
    for cut in (best - 2, best, best + 6):
        name = f"cut-{cut}"
        folder.train(name, 1, **{**keys, "run__steps": cut})
        folder.train(name, 1, **keys)
        check(f"a resume after step {cut} knows the best", link(folder, name) == f"step-{best:08}" and best in steps_kept(folder, name) and
              validation(folder, name) == losses, f"{link(folder, name)} {steps_kept(folder, name)}")
    endless = {**keys, "run__steps": 10**6}
    begun = folder.start("killed", 1, **endless)
    begun.wait_for_step(best + 4)
    begun.kill()
    check("best outlives a kill", link(folder, "killed") == f"step-{best:08}", link(folder, "killed"))
    os.unlink(path_of_best(folder, "killed"))
    os.symlink(f"step-{best - 2:08}", path_of_best(folder, "killed"))  # as a kill between a save and its link leaves it
    begun = folder.start("killed", 1, **endless)
    begun.wait_for_step(best + 8)
    begun.kill()
    check("a start puts it right", link(folder, "killed") == f"step-{best:08}" and best in steps_kept(folder, "killed"), link(folder, "killed"))


def evaluated_again(folder, keys, best, losses):
    """An evaluation that a start makes up for, and that no checkpoint knows of when it is killed, and killed again before the next save."""
    name, endless = "again", {**keys, "run__steps": 10**6, "checkpoint__every": 10**5}
    folder.train(name, 1, **{**keys, "evaluate__every": 0, "checkpoint__keep_best": False, "run__steps": best})
    for _ in range(2):
        begun = folder.start(name, 1, **endless)
        begun.wait_for_step(best + 1)
        begun.kill()
        rows = [row["val_loss"] for row in folder.metrics(name) if row["step"] == best and "val_loss" in row]
        check(f"step {best} has one evaluation after a kill", rows == [losses[best]], str(rows))
    folder.train(name, 1, **keys)
    steps = [row["step"] for row in folder.metrics(name) if "val_loss" in row]
    check("evaluations are those of a run that was never killed, each once", steps == sorted(set(steps)) and
          validation(folder, name) == {step: loss for step, loss in losses.items() if step >= best}, str(validation(folder, name)))
    known = values_of(folder.latest(name))["run"]["best_step"]
    check("and so is the best", link(folder, name) == f"step-{best:08}" and known == best, f"{link(folder, name)} {known}")


def back_to_best(folder, keys, best):
    back = {**keys, "run__resume": path_of_best(folder, "whole"), "run__steps": 40}
    done = folder.train("whole", 1, **back)
    text = done.stdout + done.stderr
    check("run.resume goes back to it", f"at step {best} of 40" in text, text)
    done = folder.train("whole", 1, **{**back, "run__steps": 44})
    text = done.stdout + done.stderr
    check("the same command goes on then", "at step 40 of 44" in text, text)
    lost = os.path.join(folder.run("whole"), "checkpoints", f"step-{best:08}")
    os.rename(lost, os.path.join(folder.path, "elsewhere"))
    done = folder.train("whole", 1, **{**keys, "run__steps": 46})
    text = done.stdout + done.stderr
    check("where it is gone that is said, and the next is the best", f"step-{best:08}, the checkpoint of the best evaluation so far" in text and
          link(folder, "whole") == "step-00000046", text)


def early(folder, keys, best, losses):
    keys = {**keys, "evaluate__patience": 3, "run__steps": 200}
    done = folder.train("early", 1, **keys)
    last = best + 6
    text = done.stdout + done.stderr
    ends = [event for event in events(folder, "early") if event["event"] in ("early_stop", "end")]
    check("a run that gets no better ends", max(folder.losses("early")) == last and "the last 3 evaluations brought no improvement (evaluate.patience)" in text, text)
    check("its state is saved, and the best one is there", steps_kept(folder, "early") == [best, last] and link(folder, "early") == f"step-{best:08}",
          str(steps_kept(folder, "early")))
    check("events say why", [event["event"] for event in ends] == ["early_stop", "end"] and ends[1]["exit"] == 0 and f"step {best}" in ends[0]["text"], str(ends))
    done = folder.train("early", 1, **keys)
    text = done.stdout + done.stderr
    check("a second start makes no step", max(folder.losses("early")) == last and "Raise evaluate.patience to continue" in text, text)
    folder.train("early", 1, **{**keys, "evaluate__patience": 5})
    check("more patience goes on", max(folder.losses("early")) == best + 10, str(max(folder.losses("early"))))
    for cut in (best + 2, best + 5):
        name = f"early-cut-{cut}"
        begun = folder.start(name, 1, **keys, run__threads=1)
        begun.wait_for_step(cut)
        begun.kill()
        folder.train(name, 2, **keys)
        check(f"a run that was killed about step {cut} ends where it would have ended", max(folder.losses(name)) == last and validation(folder, name) ==
              {step: loss for step, loss in losses.items() if step <= last} and folder.hashes(name) == folder.hashes("early-whole"), str(validation(folder, name)))
    least = losses[2] - losses[best] + 0.5
    folder.train("least", 1, **{**keys, "evaluate__min_improvement": least})
    check("a small improvement is none", max(folder.losses("least")) == 8, str(max(folder.losses("least"))))
    check("yet the best is the best", link(folder, "least") == f"step-{best_of(validation(folder, 'least')):08}", link(folder, "least"))


def main():
    with runs.Folder() as folder:
        keys = {**KEYS, **texts(folder)}
        best, losses = best_stays(folder, keys)
        across_kills(folder, keys, best, losses)
        evaluated_again(folder, keys, best, losses)
        folder.train("early-whole", 1, **{**keys, "evaluate__patience": 3, "run__steps": 200})
        early(folder, keys, best, losses)
        back_to_best(folder, keys, best)
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
