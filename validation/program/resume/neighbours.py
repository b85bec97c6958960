#!/usr/bin/env python3
"""Copies of the state in the memory of nodes: a run that loses a node goes on from them, on a spare or on fewer nodes, without a checkpoint and with the undisturbed bits; where
they are cut, damaged, of another run or lost with their neighbour, that is said and the run goes on from what stands on disk. Nodes are pretended (TESSERA_RANKS_PER_NODE): a node is
lost by killing its ranks and removing what they had in memory.
    neighbours.py [--device host|cuda]"""
import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys

import runs

check = runs.Checks()
FULL = bool(os.environ.get("TESSERA_TEST_FULL"))
DRAW = int(os.environ.get("TESSERA_TEST_DRAW", "1"))
os.environ["TESSERA_RANKS_PER_NODE"] = "1"

ON_GPUS = {}
# A layout before and after the loss, and keys of both.
CASES = [
    ("stage 1 to 2", (3, {"zero__stage": 1}), (2, {"zero__stage": 2}), {}),
    ("stage 3 on a spare", (3, {"zero__stage": 3}), (3, {"zero__stage": 3}), {"zero__param_persistence_threshold": 0}),
    ("a frozen part", (3, {"zero__stage": 2}), (2, {"zero__stage": 3}), {"model__freeze": ["layers.0.mlp.*"]}),
    ("stages of a pipeline", (4, {"mesh__pp": 2, "zero__stage": 1}), (2, {"zero__stage": 2}), {}),
    ("a tensor's parts", (4, {"mesh__tp": 2, "zero__stage": 1}), (2, {"mesh__tp": 2}), {}),
    ("asynchronous saves", (3, {"zero__stage": 2}), (2, {"zero__stage": 1}), {"checkpoint__async": True, "checkpoint__every": 2, "run__lanes": "threads"}),
    ("offloaded state", (3, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), (2, {"zero__stage": 2}), {}),
    ("a tied model with experts", (4, {"mesh__ep": 2, "zero__stage": 1}), (2, {"mesh__ep": 2}), {"model__tied": True, "model__experts": 4, "model__experts_per_token": 2}),
]


class Trial:
    def __init__(self, folder, name, keys):
        self.alone = (1, {})
        self.folder, self.name, self.memory = folder, name, os.path.join(folder.path, f"memory-{name}")
        os.mkdir(self.memory)
        self.keys = {"batch__global": 12, "model__layers": 2, "run__reproducible": True, "checkpoint__every": 0, "run__log_every": 1, "learning_rate__schedule": "constant",
                     "checkpoint__neighbour_every": 1, "checkpoint__neighbour_folder": self.memory, **ON_GPUS, **keys}

    def copies(self, step="*", rank="*"):
        return glob.glob(os.path.join(self.memory, "tessera-copies-*", "start-*", f"rank-{rank}", f"step-{step}.partial", "shard-*.h5"))

    def shards(self, step):
        return {os.path.basename(path) for path in self.copies(f"{step:08}")}

    def lose(self, ranks, layout, victims, after):
        """Starts the run, and kills it with the memory of the victims' nodes after some steps: how many it had made."""
        run = self.folder.start(self.name, ranks, **{**self.keys, **runs.ENDLESS, **layout})
        try:
            run.wait_for_step(after)
            if "checkpoint__async" not in self.keys:  # whose saves may leave no room for copies
                runs.wait_until(lambda: "is in the memory of two ranks" in run.output() or run.ended(), "copies that are whole", pause=0.01)
            run.kill()
        finally:
            if not run.ended():
                run.kill()
        for victim in victims:
            for path in glob.glob(os.path.join(self.memory, "*", "*", f"rank-{victim:05}")):
                shutil.rmtree(path)
        return run.steps_done()

    def go_on(self, ranks, layout, steps, expect=0, **more):
        done = self.folder.train(self.name, ranks, expect=expect, **{**self.keys, "run__steps": steps, **layout, **more})
        return done.stderr + done.stdout

    def undisturbed(self, steps):
        keys = {key: value for key, value in self.keys.items() if not key.startswith("checkpoint__")}
        name = f"{self.name}-undisturbed-{steps}"
        self.folder.train(name, self.alone[0], **{**keys, **self.alone[1], "checkpoint__every": 0, "run__steps": steps})
        return self.folder.hashes(name)


def resumed_at(text):
    lines = [line for line in text.splitlines() if "resumed from in-memory replicas at step" in line]
    return int(lines[0].split("at step ")[1].split()[0]) if lines else None


def losses(folder, cases):
    for number, (what, before, after, keys) in cases:
        trial = Trial(folder, f"case-{number}", keys)
        if {"mesh__tp", "mesh__ep"} & set(after[1]):
            trial.alone = after  # other parts have other bits
        victim = (DRAW + number) % before[0]
        done = trial.lose(before[0], before[1], [victim], 8)
        text = trial.go_on(after[0], after[1], done + 3)
        step = resumed_at(text)
        if "checkpoint__async" in keys:  # what a save is written from is not copied anew meanwhile: either may be the newer one
            check(f"{what}: resumes from the newest", "resumed from" in text, text)
        else:
            check(f"{what}: goes on from the memory of the nodes that are left", step is not None and 1 <= step <= done, text)
        rows = [row["step"] for row in folder.metrics(trial.name) if "loss" in row]
        check(f"{what}: each step stands once", rows == list(range(1, done + 4)), str(rows))
        check(f"{what}: with the undisturbed bits", folder.hashes(trial.name) == trial.undisturbed(done + 3))
        check(f"{what}: nothing is left in memory at the end", os.listdir(trial.memory) == [], str(os.listdir(trial.memory)))


def faults(folder):
    """What cannot be taken is named, and the run goes on from the disk: here from the checkpoint of step 4."""
    layout = {"zero__stage": 2}

    def both_lost(trial):
        for victim in (0, 1):
            for path in glob.glob(os.path.join(trial.memory, "*", "*", f"rank-{victim:05}")):
                shutil.rmtree(path)

    def cut(trial):
        for path in trial.copies():
            if path.endswith("shard-00001.h5"):
                os.truncate(path, os.path.getsize(path) - 5000)

    def altered(trial):
        for path in trial.copies():
            if path.endswith("shard-00002.h5"):
                part = next(part for part in runs.directory(path)["slices"] if part["end"] > part["begin"])
                with open(path, "r+b") as file:
                    file.seek(part["data_at"] + 1)
                    byte = file.read(1)
                    file.seek(part["data_at"] + 1)
                    file.write(bytes([byte[0] ^ 16]))

    kinds = [("two neighbours are lost together", both_lost, "are not used"), ("a copy is cut", cut, "is truncated"),
             ("a copy is altered", altered, "do not match their checksum")]
    for number, (what, damage, words) in enumerate(kinds):
        if not FULL and (number + DRAW) % 3 > 0:
            continue
        trial = Trial(folder, f"fault-{number}", {})
        trial.go_on(3, layout, 4)  # leaves a checkpoint
        trial.lose(3, layout, [], 8)
        damage(trial)
        text = trial.go_on(3, layout, 9)
        check(f"{what}: it is named", words in text, text)
        check(f"{what}: the disk's checkpoint is taken", resumed_at(text) is None and "/step-00000004 at step 4" in text, text)
        check(f"{what}: with the undisturbed bits", folder.hashes(trial.name) == trial.undisturbed(9))

    trial = Trial(folder, "other", {})
    trial.lose(2, layout, [], 5)
    shutil.rmtree(folder.run("other"))
    text = trial.go_on(2, layout, 3)
    check("a run that begins anew takes no copies of the one that stood there", "resumed" not in text and folder.hashes("other") == trial.undisturbed(3), text)

    trial = Trial(folder, "keys", {})
    trial.lose(2, layout, [], 5)
    text = trial.go_on(2, layout, 3, expect=2, optimizer__learning_rate=0.5)
    check("another deck is refused as ever", "optimizer.learning_rate" in text, text)
    memory = trial.keys.pop("checkpoint__neighbour_folder")
    text = trial.go_on(2, layout, 2, checkpoint__neighbour_every=0)
    check("without the key they are removed, not taken", "in-memory replicas" not in text and os.listdir(memory) == [], text)


def refusals(folder):
    trial = Trial(folder, "refused", {})
    del os.environ["TESSERA_RANKS_PER_NODE"]
    text = trial.go_on(2, {}, 3, expect=6)
    check("ranks of one node are refused", "checkpoint.allow_same_node" in text and "0-1 on" in text, text)
    trial.go_on(2, {"checkpoint__allow_same_node": True}, 3)
    check("but for a trial", folder.hashes("refused") == trial.undisturbed(3))
    os.environ["TESSERA_RANKS_PER_NODE"] = "1"
    text = trial.go_on(2, {}, 5, expect=6, checkpoint__neighbour_folder=os.path.join(folder.path, "none"))
    check("a folder that is not there is named", "checkpoint.neighbour_folder" in text and "there is no such folder" in text, text)


def one_rank(folder):
    """A rank that is its own neighbour, with tensors that no step changes: every copy is made, not only the first."""
    for name, keys in (("alone-frozen", {"model__freeze": ["layers.0.mlp.*"]}), ("alone-lora", {"lora__rank": 2})):
        trial = Trial(folder, name, {**keys, "checkpoint__allow_same_node": True})
        run = folder.start(name, 1, **{**trial.keys, **runs.ENDLESS})
        try:  # what a copy replaces is set aside once it is whole
            runs.wait_until(lambda: glob.glob(os.path.join(trial.memory, "*", "*", "rank-00000", "aside")) or run.ended(), "a second copy", pause=0.01)
        finally:
            run.kill()
        steps = run.steps_done() + 8  # a busy machine may see the copy late
        text = trial.go_on(1, {}, steps)
        check(f"{name}: no copy fails", "was not replicated" not in text, text)
        check(f"{name}: it goes on from a copy that is not the first", (resumed_at(text) or 0) > 1, text)
        check(f"{name}: it has the undisturbed bits", folder.hashes(name) == trial.undisturbed(steps))


def ends(folder):
    """A run that ends leaves nothing: neither one that is whole, nor one after whose end nobody goes on from its copies."""
    trial = Trial(folder, "ended", {})
    trial.go_on(2, {}, 4)
    check("a run that is whole names no copies", os.listdir(trial.memory) == [] and not os.path.exists(os.path.join(folder.run("ended"), "neighbours.json")),
          str(os.listdir(trial.memory)))
    # Weights grow threefold with each step, until they overflow.
    trial = Trial(folder, "wild", {"optimizer__learning_rate": 2, "optimizer__weight_decay": 2, "learning_rate__warmup_steps": 0, "optimizer__gradient_clipping": 0})
    text = trial.go_on(2, {}, 400, expect=8)
    had = "had some" if "is in the memory of two ranks" in text else "was too fast to make one"
    check(f"a run that ends with status 8 leaves no copies (it {had})", os.listdir(trial.memory) == [] and not os.path.exists(os.path.join(folder.run("wild"), "neighbours.json")), str(os.listdir(trial.memory)))


def plans(folder):
    table = folder.plan(2, zero__stage=2, checkpoint__neighbour_every=1)
    without = folder.plan(2, zero__stage=2)
    files, snapshot = table["tiers"]["copies"]["bytes"], table["tiers"]["host"]["categories"]["snapshot"]
    state = 12 * table["parameters"] / 2
    check("the plan counts the copy and its files: a rank's own and one that it keeps, twice", 4 * state <= files <= 4 * snapshot + 4096 and state <= snapshot and
          "copies" not in without["tiers"], f"{files} and {snapshot} for {state}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="host", choices=["host", "cuda"])
    device = parser.parse_args().device
    if device == "cuda":
        ON_GPUS.update(runs.ON_GPUS, batch__global=12, checkpoint__allow_same_node=True)
        del os.environ["TESSERA_RANKS_PER_NODE"]  # ranks of two nodes would share a GPU
    with runs.Folder() as folder:
        if device == "cuda" and not runs.has_gpu(folder):
            sys.exit(77)
        numbered = list(enumerate(CASES))
        if not FULL:
            numbered = [numbered[(DRAW + (device == "cuda")) % len(numbered)]]
        losses(folder, numbered)
        if device == "host":
            faults(folder)
            refusals(folder)
            one_rank(folder)
            ends(folder)
            plans(folder)
    sys.exit(0 if check.good else 1)


main()
